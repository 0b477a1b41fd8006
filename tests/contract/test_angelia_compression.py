"""A compressed call is refused before it is inflated (rule 34)."""

from __future__ import annotations

import grpc
import pytest

from strata_angelia.factory import open_server
from tests.contract.angelia_pairs import OPTIONS, SAY_BACK, SERVICE, Handler, Note


@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_call_over_http2_is_refused(kind: grpc.Compression) -> None:
    """A caller that reaches the port between tiers cannot make a server inflate anything."""
    handler = Handler()
    server = open_server("127.0.0.1", 0, "http2", options=OPTIONS)
    server.register(SERVICE, handler)
    endpoint = await server.start()
    try:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SAY_BACK)
            plain = Note(body=bytes(1_000)).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(plain, timeout=10, compression=kind)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert handler.contexts == []
    finally:
        await server.stop(0)
