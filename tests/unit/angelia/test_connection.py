"""The tcp connection's clockwork over a transport that is a list: pings, silence, goodbyes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from strata_angelia import frames
from strata_angelia.connection import Connection
from strata_angelia.frames import FrameReader, ReceivedFrame, WireFrameKind
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import BAD_REQUEST, UNAVAILABLE, AngeliaError

OPTIONS = AngeliaOptions(ping_interval_s=1.0, silence_timeout_s=3.0)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[ReceivedFrame] = []
        self.ended = ""
        self._reader = FrameReader()

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += self._reader.feed(b"".join(parts))

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        """A plaintext connection."""
        return {"peername": ("10.0.0.1", 99), "ssl_object": None}[name]


class Recorder(Connection):
    def __init__(self) -> None:
        super().__init__(OPTIONS)
        self.frames: list[ReceivedFrame] = []
        self.reasons: list[AngeliaError] = []

    def on_frame(self, frame: ReceivedFrame) -> None:
        self.frames.append(frame)

    def on_lost(self, reason: AngeliaError) -> None:
        self.reasons.append(reason)


@pytest.fixture
async def made() -> tuple[Recorder, Wire]:
    connection, wire = Recorder(), Wire()
    connection.connection_made(cast("Any", wire))
    return connection, wire


async def test_ping_is_answered_and_not_passed_on(made: tuple[Recorder, Wire]) -> None:
    """A PING is answered by a PONG; the subclass sees neither."""
    connection, wire = made
    connection.data_received(
        frames.header(WireFrameKind.PING, 0) + frames.header(WireFrameKind.PONG, 0)
    )
    assert [frame.kind for frame in wire.written] == [WireFrameKind.PONG]
    assert connection.frames == []
    connection.connection_lost(None)


async def test_silence_counts_pings_not_time(made: tuple[Recorder, Wire]) -> None:
    """A peer is lost after three unanswered pings in a row, however late the pings ran."""
    connection, wire = made
    for _ in range(3):
        connection._ping()
    connection.data_received(frames.header(WireFrameKind.PONG, 0))
    for _ in range(3):
        connection._ping()
        assert wire.ended == ""
    connection._ping()
    assert wire.ended == "aborted"
    connection.connection_lost(None)
    assert connection.reasons[0].code == UNAVAILABLE
    assert "silent" in connection.reasons[0].reason


async def test_bad_bytes_end_with_a_reason(made: tuple[Recorder, Wire]) -> None:
    """Garbage closes the connection after a GOODBYE that says why."""
    connection, wire = made
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.ended == "closed"
    (goodbye,) = wire.written
    code, reason = frames.decode_error(goodbye.payload)
    assert (goodbye.kind, code) == (WireFrameKind.GOODBYE, BAD_REQUEST)
    assert "frame" in reason
    connection.connection_lost(None)
    assert [error.code for error in connection.reasons] == [BAD_REQUEST]


async def test_loss_frees_whoever_waits_to_send(made: tuple[Recorder, Wire]) -> None:
    """A sender that waits for a slow peer goes on when the connection is lost, once told."""
    connection, wire = made
    connection.pause_writing()
    waiting = asyncio.ensure_future(connection.wait_writable())
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.connection_lost(ConnectionResetError("reset"))
    await waiting
    connection.send(WireFrameKind.RESPONSE, b"late", call_id=1)
    assert wire.written == []
    assert [error.code for error in connection.reasons] == [UNAVAILABLE]


class ClosedHandle(Wire):
    """uvloop's transport on a handle that was closed: it does not say so, and it raises."""

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")


@pytest.mark.parametrize("act", ["ping", "send", "pause"])
async def test_a_handle_that_is_closed_ends_the_connection(act: str) -> None:
    """A call that finds the handle closed does not fail; the connection is lost, once."""
    connection, wire = Recorder(), ClosedHandle()
    connection.connection_made(cast("Any", wire))
    if act == "ping":
        connection._ping()
    elif act == "send":
        connection.send(WireFrameKind.RESPONSE, b"late", call_id=1)
    else:
        connection.pause(True)
    assert connection.reasons == []
    await asyncio.sleep(0)
    assert [error.code for error in connection.reasons] == [UNAVAILABLE]
    assert "closed" in connection.reasons[0].reason
    connection.connection_lost(None)
    assert len(connection.reasons) == 1
