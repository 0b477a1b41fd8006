"""SourceKeys of Spark's tasks: where they come from, and that each call is signed with them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata_mq.access import parse_authorization, signature_is_right
from strata_placement.source.client import open_channel
from strata_placement.source.keys import SourceKeys
from strata_placement.source.options import SourceOptions


def test_keys_come_from_options_a_file_or_the_environment(tmp_path: Path) -> None:
    """Given keys come first; without any keys nothing is signed."""
    file = tmp_path / "key"
    file.write_text("from-file\n")
    there = {"STRATA_ACCESS_KEY": "env", "STRATA_SECRET_KEY": "from-env"}
    assert SourceKeys.find("ann", "given", environment=there) == ("ann", "given")
    assert SourceKeys.find("ann", "", str(file), environment=there) == ("ann", "from-file")
    assert SourceKeys.find("ann", environment=there) == ("ann", "from-env")
    assert SourceKeys.find(environment=there) == ("env", "from-env")
    assert SourceKeys.find(environment={}) == ("", "")


def test_options_name_keys_and_do_not_show_the_secret() -> None:
    """A plan is printed."""
    options = SourceOptions.parse(
        {"endpoint": "b:1", "topic": "t", "accessKey": "ann", "secretKey": "hush"}
    )
    assert (options.access_key, options.secret_key) == ("ann", "hush")
    assert "hush" not in repr(options)


@pytest.mark.parametrize("keys", [SourceKeys("ann", "s3cret"), SourceKeys()])
def test_each_call_is_signed(keys: SourceKeys) -> None:
    """A server sees the headers of the official clients; without keys it sees none of them."""
    seen: list[dict[str, str]] = []

    class Anything(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            seen.append(dict(details.invocation_metadata))
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}", keys=keys) as channel:
        echo: Any = channel.unary_unary("/a.B/C")
        assert echo(b"x", timeout=20, metadata=(("k", "v"),)) == b"x"
    server.stop(0)
    (headers,) = seen
    assert headers["k"] == "v"
    if not keys.access_key:
        assert "authorization" not in headers
        return
    header = parse_authorization(headers["authorization"])
    assert header is not None
    assert header.access_key == "ann"
    assert signature_is_right("s3cret", headers["x-mq-date-time"], header.signature)
