"""A broker's memory of the numbers of lite topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from strata.storage.v1 import lite_pb2
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import TopicRow
from strata_broker.storage_client.lite_directory import LiteDirectory
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
