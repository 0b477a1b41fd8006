"""Rules of every edge: grpcio behind its front and without one, and the native one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from strata_edge.options import EdgeOptions
from strata_edge.ports import HOT_METHODS
from strata_runtime.tls import Certificate
from strata_testing import until
from tests.contract.edge_ways import MIB, OpenWay, Way, stream, talk, unary
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import direct as direct
from tests.contract.edge_ways import fronted as fronted
from tests.contract.edge_ways import open_way as open_way
from tests.contract.edge_ways import plaintext as plaintext
from tests.contract.edge_ways import way as way


async def test_hot_unary(way: Way) -> None:
    """A hot call carries request, metadata, deadline and the client's address, and is answered."""
    response = await way.send(b"one", metadata=(("x-mq-client-id", "c1"),))
    assert response == b"one"
    (call,) = way.broker.calls
    assert (call.method, call.request) == ("SendMessage", b"one")
    assert call.metadata["x-mq-client-id"] == "c1"
    assert call.done()
    host, _, port = call.peer.rpartition(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)


async def test_every_hot_method_reaches_the_handler(way: Way) -> None:
    """By its name, and is counted by it."""
    for method in HOT_METHODS:
        if method == "ReceiveMessage":
            answers = [answer async for answer in stream(way.channel, method)(b"one", timeout=10)]
            assert answers == [b"one0", b"one1", b"one2"]
        else:
            assert await unary(way.channel, method)(b"one", timeout=10) == b"one"
    assert [call.method for call in way.broker.calls] == list(HOT_METHODS)
    counted = way.metrics.counter("strata_edge_calls_total")
    assert [counted.value({"method": method}) for method in HOT_METHODS] == [1] * len(HOT_METHODS)


async def test_hot_deadline(way: Way) -> None:
    """The broker sees how long the client waits; the client gets DEADLINE_EXCEEDED in time."""
    # The first call connects: on a busy machine that may be all that the second has time for.
    assert await way.send(b"on") == b"on"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await way.send(b"hold", timeout=1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: way.broker.gone == [b"hold"])
    assert way.broker.calls[1].done()


async def test_hot_time_left(way: Way) -> None:
    """A call's time left is what the client gave."""
    call = asyncio.ensure_future(way.send(b"hold", timeout=29))
    await until(lambda: len(way.broker.calls) == 1)
    left_s = way.broker.calls[0].time_left_s()
    assert left_s is not None
    # gRPC rounds a timeout of this size up to the next tenth of a second.
    assert 24 < left_s <= 29.2
    way.broker.calls[0].complete([b"done"])
    assert await call == b"done"


async def test_hot_stream(way: Way) -> None:
    """ReceiveMessage is answered by all its responses in order, or by none."""
    call = stream(way.channel, "ReceiveMessage")
    assert [response async for response in call(b"m", timeout=10)] == [b"m0", b"m1", b"m2"]


async def test_hot_batches(way: Way) -> None:
    """Calls that arrive together are handed over in fewer batches, each answered by its own."""
    requests = [b"%d" % number for number in range(200)]
    responses = await asyncio.gather(*(way.send(request) for request in requests))
    assert responses == requests
    assert len(way.broker.calls) == 200
    assert len(way.broker.batches) < 200


async def test_client_gone(way: Way) -> None:
    """`on_gone` is called once when the client cancels; a late answer does nothing."""
    call = asyncio.ensure_future(way.send(b"hold"))
    await until(lambda: len(way.broker.calls) == 1)
    call.cancel()
    await until(lambda: way.broker.gone == [b"hold"])
    way.broker.calls[0].complete([b"late"])
    assert way.broker.gone == [b"hold"]
    assert await way.send(b"on") == b"on"


async def test_client_connection_lost(way: Way) -> None:
    """`on_gone` is called when the client's connection ends."""
    other = way.open_channel()
    call = unary(other, "SendMessage")(b"hold lost", timeout=10)
    await until(lambda: len(way.broker.calls) == 1)
    await other.close()
    await until(lambda: way.broker.gone == [b"hold lost"])
    call.cancel()


async def test_too_many_hot_calls(open_way: OpenWay, direct: str) -> None:
    """Hot calls above the limit are refused at once and counted, the others are answered."""
    way = await open_way(direct, EdgeOptions(port=0, max_hot_calls=2))
    held = [asyncio.ensure_future(way.send(b"hold")) for _ in range(2)]
    await until(lambda: len(way.broker.calls) == 2)
    assert way.gauge("strata_edge_hot_calls") == 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await way.send(b"three")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in way.broker.calls:
        call.complete([b"done"])
    assert await asyncio.gather(*held) == [b"done", b"done"]
    assert way.metrics.counter("strata_edge_refused_calls_total").value({"limit": "calls"}) == 1


async def test_rare_unary(way: Way) -> None:
    """A rare RPC is answered by its coroutine; CallError becomes a gRPC status."""
    call = unary(way.channel, "Reverse")
    assert await call(b"abc", timeout=10, metadata=(("suffix", "!"),)) == b"cba!"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"refuse", timeout=10)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "not like this"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"wait", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_server_stream(way: Way) -> None:
    """A server-streaming RPC brings all responses in order."""
    call = stream(way.channel, "Count")
    numbers = [response async for response in call(b"500", timeout=10)]
    assert numbers == [b"%d" % number for number in range(500)]


async def test_bidirectional_stream(way: Way) -> None:
    """A stream talks both ways before the client is done, and ends with it."""
    call = talk(way.channel)(timeout=10)
    assert await call.read() == b"hello"
    for word in (b"a", b"b"):
        await call.write(word)
        assert await call.read() == word.upper()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    await until(lambda: way.broker.ended == 1)


async def test_bidirectional_stream_cancelled(way: Way) -> None:
    """A client that leaves a stream ends its handler."""
    call = talk(way.channel)()
    assert await call.read() == b"hello"
    call.cancel()
    await until(lambda: way.broker.ended == 1)


async def test_unknown_method(way: Way) -> None:
    """A method nobody serves is UNIMPLEMENTED."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(way.channel, "Nothing")(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_large_messages(way: Way) -> None:
    """4 MiB messages plus headers pass both ways; above the limit the call fails, not the edge."""
    body = os.urandom(4 * MIB)
    assert await way.send(body, metadata=(("padding", "x" * 4_000),)) == body
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await way.send(bytes(17 * MIB))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await way.send(b"on") == b"on"


async def test_health(way: Way) -> None:
    """grpc.health.v1 tells what was set; Watch tells changes; an unknown service is NOT_FOUND."""
    stub = health_pb2_grpc.HealthStub(way.channel)
    way.health.set("", serving=True)
    response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert response.status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    way.health.set("", serving=False)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="what"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_drain_on_stop(way: Way) -> None:
    """Stop answers running calls within the grace, refuses new connections, then is gone."""
    held = asyncio.ensure_future(way.send(b"hold"))
    await until(lambda: len(way.broker.calls) == 1)
    stop = asyncio.ensure_future(way.edge.stop(30.0))
    await asyncio.sleep(0.2)
    assert not stop.done()
    way.broker.calls[0].complete([bytes(100_000)])
    assert await held == bytes(100_000)
    await stop
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", way.port)


async def test_stop_ends_calls_after_grace(way: Way) -> None:
    """A call that outlives the grace is ended."""
    held = asyncio.ensure_future(way.send(b"hold"))
    await until(lambda: len(way.broker.calls) == 1)
    await way.edge.stop(0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await held
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_port_taken(way: Way, open_way: OpenWay) -> None:
    """An edge on a taken port fails with OSError."""
    with pytest.raises(OSError):
        await open_way(way.kind, EdgeOptions(port=way.port))


async def test_tls_and_plaintext_on_one_port(fronted: Way, certificate: Certificate) -> None:
    """The same port serves TLS and plaintext clients at the same time."""
    assert await fronted.send(b"plain") == b"plain"
    credentials = grpc.ssl_channel_credentials(certificate.certificate_file.read_bytes())
    channel = grpc.aio.secure_channel(f"127.0.0.1:{fronted.port}", credentials)
    call = unary(channel, "SendMessage")
    assert await call(b"secret", timeout=10) == b"secret"
    await channel.close()


async def test_front_killed_comes_back(open_way: OpenWay) -> None:
    """After kill -9 of the front, the port is served again by a new one, and that is counted."""
    fronted = await open_way("plaintext", EdgeOptions(port=0))
    assert await fronted.send(b"before") == b"before"
    assert fronted.edge.front_pid is not None
    os.kill(fronted.edge.front_pid, signal.SIGKILL)
    assert await _send_until_answered(fronted, b"after") == b"after"
    assert fronted.metrics.counter("strata_edge_front_restarts_total").value() == 1


async def _send_until_answered(way: Way, request: bytes) -> bytes:
    """Repeat as clients do: the first tries meet the connection that died."""
    for _ in range(100):
        try:
            return await way.send(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0.05)
    raise AssertionError("never answered")


async def test_idle_connections(fronted: Way) -> None:
    """2,000 silent connections are held and cost the server none; a talking client is served."""
    idle = [socket.create_connection(("127.0.0.1", fronted.port)) for _ in range(2_000)]
    await until(lambda: fronted.gauge("strata_edge_connections") >= 2_000)
    assert await fronted.send(b"on") == b"on"
    idle[0].sendall(b"no HTTP/2 at all\r\n\r\n")
    for connection in idle:
        connection.close()
    await until(lambda: fronted.gauge("strata_edge_connections") == 1)


async def test_connection_limit(open_way: OpenWay, plaintext: str) -> None:
    """Connections above the limit are closed at once and counted; those there are served on."""
    way = await open_way(plaintext, EdgeOptions(port=0, max_connections=3))
    assert await way.send(b"one") == b"one"
    idle = [socket.create_connection(("127.0.0.1", way.port)) for _ in range(2)]
    await until(lambda: way.gauge("strata_edge_connections") == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    assert await reader.read() == b""
    writer.close()
    assert await way.send(b"on") == b"on"
    refused = way.metrics.counter("strata_edge_refused_connections_total")
    await until(lambda: refused.value() == 1)
    for connection in idle:
        connection.close()


async def test_bad_tls_handshake(fronted: Way) -> None:
    """A broken TLS handshake is closed and counted; others are served on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
    writer.write(b"\x16\x03\x01\x00\x05hello")
    async with asyncio.timeout(30):
        await reader.read()
    writer.close()
    failures = fronted.metrics.counter("strata_edge_tls_failures_total")
    await until(lambda: failures.value() == 1)
    assert await fronted.send(b"on") == b"on"


async def test_slow_reader_blocks_nobody(way: Way) -> None:
    """A client that reads nothing of a large answer does not delay another client."""
    if way.kind == "direct":
        pytest.skip("the kernel's buffers are all there is without a front")
    slow = stream(way.channel, "Count")(b"2000000", timeout=60)
    assert await slow.read() == b"0"
    other = way.open_channel()
    call = unary(other, "SendMessage")
    for number in range(50):
        assert await call(b"%d" % number, timeout=5) == b"%d" % number
    slow.cancel()
    await other.close()


async def test_front_dies_with_its_parent(
    tmp_path_factory: pytest.TempPathFactory, open_way: OpenWay
) -> None:
    """Kill -9 of the server's process ends its front; the port and its folder are free again."""
    # A short name: the path of a socket has 107 characters at most.
    tmp_path = tmp_path_factory.mktemp("e")
    script = tmp_path / "serve.py"
    script.write_text(
        "import asyncio, pathlib, sys\n"
        "from strata_edge.grpcio_edge import GrpcioEdge\n"
        "from strata_edge.options import EdgeOptions\n"
        "from strata_runtime.tls import self_signed\n"
        "async def main():\n"
        "    folder = pathlib.Path(sys.argv[1])\n"
        "    options = EdgeOptions(port=0, certificate=self_signed(folder), socket_folder=folder)\n"
        "    edge = GrpcioEdge(options)\n"
        "    print(await edge.start(), edge._front.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )

    server = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    port, front_pid = map(int, (await server.stdout.readline()).split())
    assert not _is_gone(front_pid)
    server.kill()
    await server.wait()
    await until(lambda: _is_gone(front_pid))
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    left = _make_old(_socket_folders(tmp_path))
    way = await open_way("plaintext", EdgeOptions(port=0, socket_folder=tmp_path))
    assert left not in _socket_folders(tmp_path)
    assert await way.send(b"on") == b"on"


def _socket_folders(parent: Path) -> list[Path]:
    return list(parent.glob("strata-edge-*"))


def _make_old(folders: list[Path]) -> Path:
    """Let the only folder look as if it had been made long ago."""
    (folder,) = folders
    os.utime(folder, (0, 0))
    return folder


def _is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
