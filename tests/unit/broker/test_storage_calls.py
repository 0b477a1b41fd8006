"""Times of single calls to storage: tries, repeats, and the deadline of all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import OVERLOADED, UNAVAILABLE, AngeliaError
from strata_broker.base.metrics import METRICS
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

TIMEOUT_S, WAIT_S = 3.0, 20.0


class Node:
    """A storage node that fails a while after each call.

    Attributes:
        calls: (when, timeout, how long the request waits) of each, in seconds.
    """

    def __init__(self, clock: ManualClock, fails_after_s: float) -> None:
        self._clock = clock
        self._fails_after_s = fails_after_s
        self.calls: list[tuple[float, float, float]] = []

    async def call(
        self, path: str, request: storage_pb2.FetchRequest, response_type: type, *, timeout_s: float
    ) -> object:
        began_s = self._clock.monotonic_s()
        self.calls.append((began_s, timeout_s, request.wait_ms / 1000))
        self._clock.advance(min(timeout_s, self._fails_after_s))
        await asyncio.sleep(0)
        raise AngeliaError(UNAVAILABLE, "gone")


def client_of(node: object, clock: ManualClock, replicas: int = 1) -> StorageClient:
    """Return a client of a raft group, whose replicas are all at a node."""
    row = meta_pb2.RaftGroup(
        replicas=[meta_pb2.Replica(node_id=f"node-{number}") for number in range(replicas)]
    )
    view = SimpleNamespace(raft_group=lambda _: row, node=lambda _: meta_pb2.Node())
    metrics = Metrics()
    metrics.declare(METRICS)
    config = StorageClientSection(first_retry_ms=1, max_retry_ms=1)
    return StorageClient(
        LeaderMap(cast(Any, view), config, clock),
        cast(Any, SimpleNamespace(to=lambda _: node)),
        config,
        clock=clock,
        random=lambda: 0.5,
        metrics=metrics,
    )


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("fails_after_s", [9.0, 1_000.0])
async def test_no_try_lasts_beyond_the_time_of_its_call(
    replicas: int, fails_after_s: float
) -> None:
    """Nor does the wait at storage: who waits learns why before its own client gives up."""
    clock = ManualClock()
    node = Node(clock, fails_after_s)
    client = client_of(node, clock, replicas)
    ends_s = clock.monotonic_s() + TIMEOUT_S + WAIT_S
    request = storage_pb2.FetchRequest(raft_group=1, wait_ms=int(WAIT_S * 1000))
    with pytest.raises(RequestError) as failure:
        await client.call(
            1,
            "Fetch",
            request,
            storage_pb2.FetchResponse,
            timeout_s=TIMEOUT_S,
            wait_s=WAIT_S,
        )
    assert failure.value.code is Code.PROXY_TIMEOUT
    assert node.calls[0][2] == WAIT_S
    for began_s, timeout_s, wait_s in node.calls:
        assert began_s + timeout_s <= ends_s + 0.01
        assert wait_s < timeout_s
    assert request.wait_ms == WAIT_S * 1000


class Answering:
    """A storage node that answers one call after the other as it is told."""

    def __init__(self, *answers: AngeliaError | storage_pb2.Outcome.ValueType) -> None:
        self._answers = list(answers)

    async def call(
        self, path: str, request: object, response_type: type[Any], *, timeout_s: float
    ) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, AngeliaError):
            raise answer
        return response_type(refusal=storage_pb2.Refusal(outcome=answer, reason="no space"))


GONE = AngeliaError(UNAVAILABLE, "gone")
BUSY = AngeliaError(OVERLOADED, "busy")
RECALL = storage_pb2.RecallRequest(raft_group=1), storage_pb2.RecallResponse
CHANGE = storage_pb2.ChangeInvisibleRequest(raft_group=1), storage_pb2.ChangeInvisibleResponse
FETCH = storage_pb2.FetchRequest(raft_group=1), storage_pb2.FetchResponse


@pytest.mark.parametrize(
    ("rpc", "call", "answers", "code"),
    [
        ("Recall", RECALL, (GONE, storage_pb2.OUTCOME_DISK_FULL), Code.PROXY_TIMEOUT),
        ("Recall", RECALL, (GONE, BUSY, storage_pb2.OUTCOME_OVERLOADED), Code.PROXY_TIMEOUT),
        (
            "ChangeInvisible",
            CHANGE,
            (storage_pb2.OUTCOME_NOT_LEADER, storage_pb2.OUTCOME_READ_ONLY),
            Code.PROXY_TIMEOUT,
        ),
        # It tells of the first try, too.
        (
            "Recall",
            RECALL,
            (GONE, storage_pb2.OUTCOME_INVALID_HANDLE),
            Code.INVALID_RECEIPT_HANDLE,
        ),
        # Nothing was carried out.
        ("Recall", RECALL, (storage_pb2.OUTCOME_DISK_FULL,), Code.INTERNAL_SERVER_ERROR),
        ("Recall", RECALL, (BUSY, storage_pb2.OUTCOME_OVERLOADED), Code.TOO_MANY_REQUESTS),
        ("Fetch", FETCH, (GONE, storage_pb2.OUTCOME_OVERLOADED), Code.TOO_MANY_REQUESTS),
    ],
)
async def test_a_repeat_that_is_refused_tells_nothing_of_the_first_try(
    rpc: str,
    call: tuple[Message, type[Message]],
    answers: tuple[AngeliaError | storage_pb2.Outcome.ValueType, ...],
    code: Code,
) -> None:
    """A message that was recalled is gone: its sender must not hear that it is not (rule 37)."""
    client = client_of(Answering(*answers), ManualClock())
    with pytest.raises(RequestError) as failure:
        await client.call(1, rpc, *call)
    assert failure.value.code is code
