"""The RPC x status code matrix: every cell of it, produced by a call and held against its text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from tests.integration.broker import (
    matrix_common_cells,
    matrix_consume_cells,
    matrix_pending_cells,
    matrix_pull_cells,
    matrix_send_cells,
)
from tests.integration.broker.code_matrix import (
    BEYOND,
    BY_CLIENTS,
    MATRIX,
    NOT_PRODUCED,
    PRODUCED_ELSEWHERE,
    Cell,
)
from tests.integration.broker.faulty_node import Port, faulty_node
from tests.integration.broker.matrix_calls import GROUP, TOPICS, Calls

CELLS: list[Cell] = [
    *matrix_common_cells.CELLS,
    *matrix_send_cells.CELLS,
    *matrix_consume_cells.CELLS,
    *matrix_pull_cells.CELLS,
    *matrix_pending_cells.CELLS,
]

PATIENCE_MS = 2_500
"""Calls that nobody answers take so long; an answer of a busy machine takes less."""

SHORT_WAITS: dict[str, Any] = {"min_polling_ms": 200, "gone_grace_ms": 1}
NODES: dict[str, dict[str, dict[str, Any]]] = {
    # Room for everything.
    "roomy": {"receive": SHORT_WAITS, "metadata": {"call_timeout_ms": PATIENCE_MS}},
    # Every limit is reached by a second call, every wait is short, names are made otherwise.
    "tight": {
        "calls": {"max_in_flight": 1},
        "receive": SHORT_WAITS | {"max_parked": 1},
        "pull": {"max_parked": 1},
        "send": {"timeout_ms": PATIENCE_MS, "max_bytes_in_flight": 100_000},
        "storage_client": {"call_timeout_ms": PATIENCE_MS},
        "ack": {"max_waiting": 1},
        "metadata": {
            "auto_create_topic": True,
            "auto_create_group": False,
            "call_timeout_ms": PATIENCE_MS,
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Calls]]:
    """One node of each kind, with topics, a consumer group and a quota."""
    folder = tmp_path_factory.mktemp("matrix")
    async with (
        faulty_node(folder / "roomy", NODES["roomy"]) as roomy,
        faulty_node(folder / "tight", NODES["tight"]) as tight,
    ):
        for port in (roomy, tight):
            await furnish(port)
        yield {"roomy": Calls(roomy), "tight": Calls(tight)}


async def furnish(port: Port) -> None:
    """Make what the cells use."""
    limited = {"limited": meta_pb2.TOPIC_TYPE_NORMAL}
    for namespace, topics in (("", TOPICS | limited), ("other", TOPICS)):
        for name, kind in topics.items():
            topic = meta_pb2.Topic(namespace=namespace, name=name, type=kind, queue_count=4)
            await done(port.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=topic))
    group = meta_pb2.ConsumerGroup(name=GROUP)
    request = admin_pb2.CreateConsumerGroupRequest(consumer_group=group)
    await done(port.admin.CreateConsumerGroup, request)
    quota = meta_pb2.Quota(topic="limited", messages_per_s=1)
    mask = ["messages_per_s"]
    await done(port.admin.SetQuota, admin_pb2.SetQuotaRequest(quota=quota, update_mask=mask))
    _add_homeless_topic(port)


async def done(call: Callable[[Any], Awaitable[object]], request: Message) -> None:
    """Make an operator's call until it is done: the nodes' patience is short, the machine busy."""
    async with asyncio.timeout(60):
        while True:
            try:
                await call(request)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is grpc.StatusCode.ALREADY_EXISTS:
                    return
                assert failure.code() is grpc.StatusCode.UNAVAILABLE, failure
            else:
                return


def _add_homeless_topic(port: Port) -> None:
    """Let the broker know a topic whose queues nobody owns; a nameserver makes no such topic."""
    view = port.node.broker.view
    topic = meta_pb2.Topic(
        topic_id=4_000_000, name="homeless", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=1
    )
    topic.homes.add(raft_group=99, queues=[0])
    override = meta_pb2.QueueOverride(topic_id=4_000_000, queue=0, epochs=[meta_pb2.Epoch()])
    changes = [meta_pb2.Change(topic=topic), meta_pb2.Change(queue_override=override)]
    view.apply(meta_pb2.WatchResponse(revision=view.revision, changes=changes))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_cell(nodes: dict[str, Calls], cell: Cell) -> None:
    """The client is told this code, with this text."""
    status = await cell.act(nodes[cell.node])
    assert definition_pb2.Code.Name(status.code) == cell.code, status.message
    if cell.text.endswith("*"):
        assert status.message.startswith(cell.text.removesuffix("*"))
    elif cell.text:
        assert status.message == cell.text
    assert status.message, "a client's log shows something"


def test_no_cell_is_missing() -> None:
    """Every cell of the matrix is produced, or says why it is not; none is both."""
    wanted = {(rpc, code) for rpc, codes in MATRIX.items() for code in codes}
    for others in (BEYOND, BY_CLIENTS):
        wanted |= {(rpc, code) for rpc, codes in others.items() for code in codes}
    produced = {(cell.rpc, cell.code) for cell in CELLS} | set(PRODUCED_ELSEWHERE)
    assert wanted - produced == set(NOT_PRODUCED)
    assert not produced & set(NOT_PRODUCED)
    assert all(NOT_PRODUCED.values())
    print(f"{len(wanted & produced)} of {len(wanted)} cells, {len(NOT_PRODUCED)} cannot be")
