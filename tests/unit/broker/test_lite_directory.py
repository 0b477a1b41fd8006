"""A broker's memory of the numbers of lite topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from strata.storage.v1 import lite_pb2
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import TopicRow
from strata_broker.storage_client.lite_directory import LiteDirectory
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics

PARENT = cast("TopicRow", SimpleNamespace(topic_id=7, slot_base=0, queue_count=4))


class Storage:
    """Answers questions for numbers one after another, when the test says so."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []

    async def call(
        self, raft_group: int, rpc: str, request: Any, response_type: Any, **_: Any
    ) -> lite_pb2.NumberLiteTopicsResponse:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return lite_pb2.NumberLiteTopicsResponse(numbers=[await answer])


async def test_a_number_that_was_replaced_is_not_kept() -> None:
    """A lite topic ended between two questions: its old number would stay in memory forever."""
    storage = Storage()
    directory = LiteDirectory(
        cast("Any", SimpleNamespace(owner=lambda topic, queue: 1)),
        cast("Any", storage),
        LiteSection(),
        metrics=Metrics.disabled(),
    )
    questions = [asyncio.ensure_future(directory.numbers(PARENT, ("a",))) for _ in range(2)]
    await asyncio.sleep(0)
    for question, answer, number in zip(questions, storage.answers, (5, 9), strict=True):
        answer.set_result(number)
        assert await question == {"a": number}
    assert directory._names == {(7, 9): "a"}
    # News of the old number says nothing of the new one.
    directory.forget(7, 5)
    assert directory.number(PARENT, "a") == 9


async def test_a_raft_group_that_does_not_answer_leaves_room_for_others() -> None:
    """Questions for its lite topics wait for as long as their senders do."""
    storage = Storage()
    directory = LiteDirectory(
        cast("Any", SimpleNamespace(owner=lambda topic, queue: 1 if topic is PARENT else 2)),
        cast("Any", storage),
        LiteSection(max_lookups=8),
        metrics=Metrics.disabled(),
    )
    other = cast("TopicRow", SimpleNamespace(topic_id=8, slot_base=0, queue_count=4))
    stuck = [asyncio.ensure_future(directory.numbers(PARENT, (f"n{one}",))) for one in range(10)]
    await asyncio.sleep(0)
    assert len(storage.answers) == 6
    refused = [one.exception() for one in stuck if one.done()]
    assert [cast("RequestError", one).code for one in refused] == [Code.TOO_MANY_REQUESTS] * 4
    assert {cast("RequestError", one).text for one in refused} == {
        "too many lite topics are looked up (lite.max_lookups)"
    }
    question = asyncio.ensure_future(directory.numbers(other, ("a",)))
    await asyncio.sleep(0)
    storage.answers[-1].set_result(5)
    assert await question == {"a": 5}
    # An answered caller makes room, and so does one that went away.
    storage.answers[0].set_result(6)
    stuck[1].cancel()
    await asyncio.gather(*stuck[:2], return_exceptions=True)
    more = [asyncio.ensure_future(directory.numbers(PARENT, (f"m{one}",))) for one in range(3)]
    await asyncio.sleep(0)
    assert [one.done() for one in more] == [False, False, True]
    assert isinstance(more[2].exception(), RequestError)
    for one in (*stuck, *more):
        one.cancel()
    await asyncio.gather(*stuck, *more, return_exceptions=True)
    assert not directory._asked
