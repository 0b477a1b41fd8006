"""Pops through the broker's own handlers: what becomes of leases that no client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.remoting.face import MessagingFace, PoppedAnswer
from strata_broker.remoting.face_calls import FaceCaller, FacePop
from strata_testing import until


def answer(*bodies: bytes) -> list[bytes]:
    """The responses of a receive."""
    responses = [
        service_pb2.ReceiveMessageResponse(
            status=definition_pb2.Status(code=definition_pb2.OK, message="OK")
        )
    ]
    responses += [
        service_pb2.ReceiveMessageResponse(message=definition_pb2.Message(body=body))
        for body in bodies
    ]
    return [response.SerializeToString() for response in responses]


class Popping:
    """A face whose hot handler keeps the pop, which waits."""

    def __init__(self) -> None:
        self.face = MessagingFace(self)
        self.call = FacePop(b"", FaceCaller({}, "127.0.0.1:1"), ANY_QUEUE, wait_ms=1_000)
        self.left = self.given_back = 0
        self.got: list[bytes] = []

    def handle(self, calls: Sequence[Any]) -> None:
        assert list(calls) == [self.call]
        self.call.on_gone(self._note_left)

    def _note_left(self) -> None:
        self.left += 1

    def give_back(self) -> None:
        self.given_back += 1

    def begin(self, deliver: Callable[[PoppedAnswer], Any] | None = None) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.face.pop(self.call, deliver or self._take))

    async def _take(self, popped: PoppedAnswer) -> None:
        self.got += [one.body for one in popped.messages]


async def test_an_answer_that_is_taken_is_kept() -> None:
    """Its leases are the client's, also if its connection ends afterwards."""
    popping = Popping()
    task = popping.begin()
    await asyncio.sleep(0)
    popping.call.complete(answer(b"a", b"b"), popping.give_back)
    await task
    popping.call.gone()
    assert (popping.got, popping.left, popping.given_back) == ([b"a", b"b"], 0, 0)


async def test_a_client_that_goes_ends_its_pop() -> None:
    """The receive hears of it once; leases that come nevertheless are given back."""
    popping = Popping()
    task = popping.begin()
    await asyncio.sleep(0)
    popping.call.gone()
    popping.call.gone()
    with pytest.raises(ConnectionResetError):
        await task
    assert (popping.left, popping.call.done()) == (1, True)
    popping.call.complete(answer(b"a"), popping.give_back)
    await until(lambda: popping.given_back == 1)
    assert popping.got == []


async def test_an_answer_that_cannot_be_written_is_given_back() -> None:
    """Once, and the request fails as it did."""
    popping = Popping()

    async def fail(_: PoppedAnswer) -> None:
        raise ConnectionResetError

    task = popping.begin(fail)
    await asyncio.sleep(0)
    popping.call.complete(answer(b"a"), popping.give_back)
    with pytest.raises(ConnectionResetError):
        await task
    assert (popping.left, popping.given_back) == (0, 1)


async def test_a_request_that_is_cancelled_leaves_its_line() -> None:
    """A broker that stops waits for no messages."""
    popping = Popping()
    task = popping.begin()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (popping.left, popping.given_back) == (1, 0)
    popping.call.complete(answer(b"a"), popping.give_back)
    await until(lambda: popping.given_back == 1)
