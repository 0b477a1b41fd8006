"""One connection of the remoting protocol: what it begins, what waits, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from strata.broker.v1 import peer_pb2
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.remoting.connection import ConnectionPort, RemotingConnection
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.requesters import Requesters
from strata_broker.remoting.unfinished_frames import UnfinishedFrames
from strata_broker.remoting.unread_answers import UnreadAnswers
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, Serialization, encode_frame
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_testing import until


class FakeTransport:
    """Keeps what is written; knows whether it is read."""

    def __init__(self) -> None:
        self.is_read = True
        self.written = b""
        self.ended = ""
        self.buffered_bytes = 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4_000) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.buffered_bytes

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"


class FakeDispatcher:
    """Holds every request until it is told to answer it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.most_at_once = 0
        self.pause_s = 0.0
        self._held: list[asyncio.Event] = []

    def wait_s(self, peer: str) -> float:
        pause_s, self.pause_s = self.pause_s, 0.0
        return pause_s

    async def serve(self, exchange: Exchange) -> None:
        self.begun.append(exchange.request.opaque)
        held = asyncio.Event()
        self._held.append(held)
        self.most_at_once = max(self.most_at_once, len(self._held))
        await held.wait()
        self._held.remove(held)
        await exchange.answer(exchange.request.answered(0))

    def answer_one(self) -> None:
        self._held[0].set()


@pytest.fixture
async def scene() -> AsyncIterator[SimpleNamespace]:
    """A connection that may have two requests at once, and 200 ms for a frame or an answer."""
    dispatcher, transport = FakeDispatcher(), FakeTransport()
    config = RemotingSection(
        max_requests_per_connection=2,
        max_upload_ms=200,
        max_unread_ms=200,
        max_unread_bytes=150_000,
        max_unread_bytes_per_connection=100_000,
        max_unfinished_bytes=8 << 20,
        max_unfinished_bytes_per_address=6 << 20,
    )
    requests = RequestTasks("remoting request", Metrics.disabled(), max_tasks=100)
    port = ConnectionPort(
        dispatcher,  # type: ignore[arg-type]
        config,
        requests,
        UnfinishedFrames(config, Metrics.disabled()),
        UnreadAnswers(config, Metrics.disabled()),
        lambda _: True,
        lambda _: None,
    )
    connection = RemotingConnection(port)
    connection.connection_made(transport)  # type: ignore[arg-type]
    yield SimpleNamespace(
        connection=connection, dispatcher=dispatcher, transport=transport, port=port
    )
    connection.connection_lost(None)
    await requests.stop()


def has_begun(scene: SimpleNamespace, count: int) -> bool:
    return len(scene.dispatcher.begun) == count


def frames(*numbers: int) -> bytes:
    commands = (RemotingCommand(RequestCode.HEART_BEAT, number) for number in numbers)
    return b"".join(encode_frame(command, Serialization.JSON) for command in commands)


async def test_what_arrives_at_once_is_begun_within_the_limit(scene: SimpleNamespace) -> None:
    """One read may bring thousands of requests: they wait in the buffer, and none is lost."""
    scene.connection.data_received(frames(*range(10)))
    await until(lambda: len(scene.dispatcher.begun) == 2)
    assert not scene.transport.is_read
    for begun in (3, 4, 5, 6, 7, 8, 9, 10, 10, 10):
        scene.dispatcher.answer_one()
        await until(partial(has_begun, scene, begun))
    assert scene.dispatcher.begun == list(range(10))
    assert scene.dispatcher.most_at_once == 2
    await until(lambda: scene.transport.is_read)


async def test_a_pause_holds_for_what_has_arrived_too(scene: SimpleNamespace) -> None:
    """A client with too many refusals gains nothing from sending requests in one piece."""
    scene.connection.data_received(frames(*range(4)))
    await until(lambda: len(scene.dispatcher.begun) == 2)
    scene.dispatcher.pause_s = 0.05
    scene.dispatcher.answer_one()
    await until(lambda: not scene.dispatcher.pause_s)
    assert scene.dispatcher.begun == [0, 1]
    await until(lambda: scene.dispatcher.begun == [0, 1, 2])


async def test_a_busy_client_whose_reads_end_within_frames_is_not_slow(
    scene: SimpleNamespace,
) -> None:
    """The time limit is of one frame: each read ends one and begins the next."""
    wire = frames(*range(100, 130))
    size = len(wire) // 30
    scene.connection.data_received(wire[: size // 2])
    for number in range(12):
        begin = number * size + size // 2
        scene.connection.data_received(wire[begin : begin + size])
        await until(partial(has_begun, scene, number + 1))
        scene.dispatcher.answer_one()
        await asyncio.sleep(0.05)
    assert scene.transport.ended == ""


async def test_a_frame_that_does_not_come_ends_its_connection(scene: SimpleNamespace) -> None:
    """A client cannot hold the memory of a frame that it never finishes."""
    scene.connection.data_received(frames(1)[:-1])
    await until(lambda: scene.transport.ended == "aborted")


async def test_requests_that_wait_for_room_are_no_slow_frame(scene: SimpleNamespace) -> None:
    """They have arrived; only the broker is late."""
    scene.connection.data_received(frames(*range(3)))
    await asyncio.sleep(0.4)
    assert (scene.transport.ended, len(scene.dispatcher.begun)) == ("", 2)


async def test_a_drained_connection_ends_with_its_last_answer(scene: SimpleNamespace) -> None:
    """Requests under way are answered, those that wait in the buffer are not begun."""
    scene.connection.data_received(frames(*range(3)))
    await until(lambda: len(scene.dispatcher.begun) == 2)
    scene.connection.drain()
    scene.dispatcher.answer_one()
    await until(lambda: scene.transport.written.count(b'"opaque":') == 1)
    assert scene.transport.ended == ""
    scene.dispatcher.answer_one()
    await until(lambda: scene.transport.ended == "closed")
    assert (scene.dispatcher.begun, scene.transport.written.count(b'"opaque":')) == ([0, 1], 2)


class EndedTls:
    """TLS whose client has ended it with its last request."""

    has_ended = is_open = True

    def received(self, data: bytes) -> bytes:
        return data

    def to_write(self) -> bytes:
        return b""

    def sealed(self, data: bytes) -> bytes:
        return data


async def test_requests_that_come_with_the_end_of_tls_are_answered(
    scene: SimpleNamespace,
) -> None:
    """Then the connection ends."""
    scene.connection._has_begun, scene.connection._tls = True, EndedTls()
    scene.connection.data_received(frames(7))
    await until(lambda: scene.dispatcher.begun == [7])
    assert not scene.transport.ended
    scene.dispatcher.answer_one()
    await until(lambda: scene.transport.ended == "closed")
    assert scene.transport.written


class FailedTls(EndedTls):
    """TLS that cannot write."""

    has_ended = False

    def sealed(self, data: bytes) -> bytes:
        raise ConnectionResetError("TLS: failed")


async def test_a_write_that_tls_refuses_ends_the_connection(scene: SimpleNamespace) -> None:
    """A question of the broker's own raises nothing then."""
    scene.connection._has_begun, scene.connection._tls = True, FailedTls()
    scene.connection.tell(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE).oneway())
    assert scene.transport.ended == "aborted"


def unread_answer(scene: SimpleNamespace, body: bytes = b"x") -> asyncio.Task[None]:
    """Begin an answer whose client reads nothing."""
    request = RemotingCommand(RequestCode.POP_MESSAGE, 1)
    exchange = Exchange(request, scene.connection, Serialization.JSON)
    scene.connection.pause_writing()
    return asyncio.ensure_future(scene.connection.answer(exchange, request.answered(0, body=body)))


async def test_an_answer_that_its_client_does_not_read_fails(scene: SimpleNamespace) -> None:
    """The request's handler hears of it: leases of a pop are given back."""
    with pytest.raises(ConnectionResetError):
        await unread_answer(scene)
    assert scene.transport.ended == "aborted"


async def test_an_answer_whose_client_goes_meanwhile_fails(scene: SimpleNamespace) -> None:
    """The end of the connection is no sign that the answer was read."""
    answer = unread_answer(scene)
    await asyncio.sleep(0)
    scene.connection.connection_lost(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await answer


async def test_an_answer_that_its_client_reads_late_is_taken(scene: SimpleNamespace) -> None:
    """A slow reader within its time is no failure."""
    answer = unread_answer(scene)
    await asyncio.sleep(0)
    assert not answer.done()
    scene.connection.resume_writing()
    await answer
    assert scene.transport.ended == ""


REPLY = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, body=b"pong")


def answers(*numbers: int) -> bytes:
    """Frames that answer questions of the broker."""
    commands = (RemotingCommand(RequestCode.HEART_BEAT, number) for number in numbers)
    return b"".join(encode_frame(command.answered(0), Serialization.JSON) for command in commands)


async def test_a_question_waits_until_there_is_room(scene: SimpleNamespace) -> None:
    """Large replies that are under way keep no other one from a healthy client."""
    scene.connection.pause_writing()
    scene.transport.buffered_bytes = 100_000
    asked = [asyncio.ensure_future(scene.connection.ask(REPLY)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in asked)
    assert scene.transport.written == b""
    scene.connection.resume_writing()
    await until(lambda: scene.transport.written.count(b"pong") == 2)
    scene.connection.data_received(answers(1, 2))
    assert [one.opaque for one in await asyncio.gather(*asked)] == [1, 2]


async def test_a_question_that_waits_fails_with_its_client(scene: SimpleNamespace) -> None:
    """Nothing is written to a connection that has ended."""
    scene.connection.pause_writing()
    asked = asyncio.ensure_future(scene.connection.ask(REPLY))
    await asyncio.sleep(0)
    scene.connection.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await asked
    assert scene.transport.written == b""


async def test_a_client_that_reads_no_reply_is_slow_and_not_missing(
    scene: SimpleNamespace,
) -> None:
    """The consumer hears of a timeout: the channel is there."""
    requesters = Requesters(50)
    requesters.heard(scene.connection, "ann")
    scene.connection.pause_writing()
    scene.transport.buffered_bytes = 100_000
    with pytest.raises(RequestError) as failure:
        await requesters.push(
            peer_pb2.PushReplyRequest(client_id=scene.connection.client_id, user="ann")
        )
    assert failure.value.code is Code.REQUEST_TIMEOUT


async def test_a_large_answer_behind_too_many_unread_bytes_is_refused(
    scene: SimpleNamespace,
) -> None:
    """Bytes that the client does not read have a limit; refusals and acks are told anyway."""
    unread = unread_answer(scene, bytes(90_000))
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as failure:
        await unread_answer(scene, b"lost" * 5_000)
    assert failure.value.code is Code.TOO_MANY_REQUESTS
    assert "max_unread_bytes_per_connection" in failure.value.text
    told = unread_answer(scene, b"small")
    await asyncio.sleep(0)
    assert b"lost" not in scene.transport.written
    assert b"small" in scene.transport.written
    scene.connection.resume_writing()
    await asyncio.gather(unread, told)
    later = unread_answer(scene, b"late" * 5_000)
    await asyncio.sleep(0)
    assert scene.transport.written.count(b"late") == 5_000
    scene.connection.resume_writing()
    await later


async def test_connections_share_the_room_for_unread_answers(scene: SimpleNamespace) -> None:
    """The end of a connection that reads nothing gives its room back."""
    other = RemotingConnection(scene.port, "127.0.0.1:4001")
    transport = FakeTransport()
    other.connection_made(transport)  # type: ignore[arg-type]
    others = SimpleNamespace(connection=other, transport=transport)
    unread = unread_answer(scene, bytes(90_000))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="max_unread_bytes"):
        await unread_answer(others, bytes(90_000))
    assert transport.written == b""
    scene.connection.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await unread
    taken = unread_answer(others, bytes(500_000))
    await asyncio.sleep(0)
    other.resume_writing()
    await taken
    assert len(transport.written) > 500_000
    other.connection_lost(None)


async def asked_of(scene: SimpleNamespace) -> asyncio.Task[RemotingCommand]:
    """Ask the client something; the question is written."""
    asked: asyncio.Task[RemotingCommand] = asyncio.ensure_future(scene.connection.ask(REPLY))
    await until(lambda: b"pong" in scene.transport.written)
    return asked


async def test_an_answer_is_read_behind_requests_that_wait(scene: SimpleNamespace) -> None:
    """A busy client has taken the reply; its requests wait, and none is lost."""
    scene.connection.data_received(frames(*range(10, 14)))
    await until(lambda: len(scene.dispatcher.begun) == 2)
    assert not scene.transport.is_read
    asked = await asked_of(scene)
    assert scene.transport.is_read
    scene.connection.data_received(frames(14) + answers(1) + frames(15))
    assert (await asyncio.wait_for(asked, 20)).opaque == 1
    assert not scene.transport.is_read
    assert scene.dispatcher.begun == [10, 11]
    for begun in (3, 4, 5, 6):
        scene.dispatcher.answer_one()
        await until(partial(has_begun, scene, begun))
    assert (scene.dispatcher.begun, scene.dispatcher.most_at_once) == ([*range(10, 16)], 2)


async def test_an_answer_is_read_in_a_pause(scene: SimpleNamespace) -> None:
    """Refused calls make requests wait, and no answer."""
    asked = await asked_of(scene)
    scene.dispatcher.pause_s = 0.2
    scene.connection.resume_writing()
    scene.connection.data_received(frames(7, 8) + answers(1))
    assert (await asyncio.wait_for(asked, 20)).opaque == 1
    assert scene.dispatcher.begun == []
    await until(lambda: scene.dispatcher.begun == [7, 8])


async def test_requests_before_an_answer_have_a_limit_in_bytes(scene: SimpleNamespace) -> None:
    """A client that answers nothing is not read without end, and its requests are not lost."""
    scene.connection.data_received(frames(1, 2))
    await until(lambda: len(scene.dispatcher.begun) == 2)
    asked = await asked_of(scene)
    large = [RemotingCommand(RequestCode.HEART_BEAT, 3 + n, body=bytes(300_000)) for n in range(5)]
    for command in large[:3]:
        scene.connection.data_received(encode_frame(command, Serialization.JSON))
    assert scene.transport.is_read
    for command in large[3:]:
        scene.connection.data_received(encode_frame(command, Serialization.JSON))
    assert (scene.transport.is_read, scene.transport.ended) == (False, "")
    asked.cancel()
    for begun in (3, 4, 5, 6, 7):
        scene.dispatcher.answer_one()
        await until(partial(has_begun, scene, begun))
    assert scene.dispatcher.begun == [*range(1, 8)]


async def test_a_drained_connection_ends_behind_the_answers_of_its_client(
    scene: SimpleNamespace,
) -> None:
    """The reply was delivered: its consumer hears so. There are no further questions."""
    asked = await asked_of(scene)
    scene.connection.drain()
    assert (scene.transport.ended, scene.transport.is_read) == ("", True)
    with pytest.raises(ConnectionResetError):
        await scene.connection.ask(REPLY)
    scene.connection.data_received(frames(5) + answers(1))
    assert (await asyncio.wait_for(asked, 20)).opaque == 1
    assert (scene.transport.ended, scene.dispatcher.begun) == ("closed", [])


async def test_a_drained_connection_does_not_wait_for_an_answer_that_is_late(
    scene: SimpleNamespace,
) -> None:
    """The time is limited by the one that asks."""
    asked = await asked_of(scene)
    scene.connection.drain()
    asked.cancel()
    await until(lambda: scene.transport.ended == "closed")
