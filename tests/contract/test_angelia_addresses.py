"""Endpoints come from other processes: no text of theirs breaks a caller."""

from __future__ import annotations

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.http2_channel import Http2Channel
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tls import PeerFiles, PeerTls
from strata_runtime.authority import issue, make_authority
from strata_runtime.roles import PeerRole

GET = "/strata.meta.v1.MetaService/GetSnapshot"
BAD = ("storage..example:1", f"{'a' * 64}:1", "127.0.0.1:65536", "127.0.0.1:x", "storage", "a\nb:1")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> PeerTls:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder / "ca")
    issue(folder / "ca", folder / "own", PeerRole.STORAGE, ["127.0.0.1"])
    tls = PeerTls(PeerFiles.in_folder(folder / "own"), PeerRole.STORAGE)
    tls.load()
    return tls


@pytest.mark.parametrize("endpoint", BAD)
@pytest.mark.parametrize("transport", [TcpChannel, Http2Channel])
@pytest.mark.parametrize("has_tls", [False, True])
async def test_an_endpoint_that_is_no_address_cannot_be_reached(
    endpoint: str,
    transport: type[TcpChannel] | type[Http2Channel],
    certificates: PeerTls,
    *,
    has_tls: bool,
) -> None:
    """An operator may mistype what a node tells the others of itself."""
    channel = transport(endpoint, tls=certificates if has_tls else None)
    request, response_type = meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse
    with pytest.raises(AngeliaError) as refused:
        await channel.call(GET, request, response_type, timeout_s=5.0)
    assert refused.value.code == UNAVAILABLE
    await channel.close()
