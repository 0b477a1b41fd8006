"""Trims name a bounded number of queues each: replicas apply one without a pause (rule 39)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import TrimCommand
from strata_state.ports import RowBatch
from strata_storage.rows.machine import GroupMachine
from strata_storage.upkeep.retention import FixedRetention
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, NodeUnderTest, node_under_test

QUEUES_MAX = 3
# Four queues each, eight in all; the third topic is written meanwhile.
TRIMMED_TOPICS, BUSY_TOPIC = (TOPIC.topic_id, 8), 10


def machine_of(node: NodeUnderTest) -> GroupMachine:
    return node.app.node.engine(GROUP).machine


def offsets(node: NodeUnderTest) -> list[tuple[int, int]]:
    """Return where the queues begin and end that are trimmed."""
    rows = machine_of(node).rows.queues
    return [
        (row.min_offset, row.next_offset)
        for topic_id in TRIMMED_TOPICS
        for _, row in rows.of_topic(topic_id)
    ]


@contextmanager
def applied_trims(node: NodeUnderTest) -> Iterator[list[tuple[TrimCommand, int]]]:
    """Give the trims as they are applied, each with the end of the busy topic's queue before it.

    An append to that queue is begun with the first one.
    """
    node.app.node.engine(GROUP).leading().trims.queues_max = QUEUES_MAX
    machine, seen = machine_of(node), list[tuple[TrimCommand, int]]()
    apply = machine._trims.apply

    def noted(batch: RowBatch, trim: TrimCommand, group_time_ms: int) -> None:
        if not seen:
            appends.append(asyncio.ensure_future(node.append([b"busy"], topic_id=BUSY_TOPIC)))
        row = machine.queues.get(BUSY_TOPIC, 0)
        seen.append((trim, 0 if row is None else row.next_offset))
        apply(batch, trim, group_time_ms)

    appends: list[asyncio.Future[pb.GroupResult]] = []
    with patch.object(machine._trims, "apply", noted):
        yield seen


async def test_retention_trims_many_queues_by_several_entries(tmp_path: Path) -> None:
    """Only the last one says what the log may give up; other work goes on in between."""
    async with node_under_test(tmp_path, retention=FixedRetention(60_000)) as node:
        for topic_id in TRIMMED_TOPICS:
            for queue in range(4):
                await node.append([b"a", b"b"], queue=queue, topic_id=topic_id)
        newest = machine_of(node).state.raft_index
        low_index = machine_of(node).low_index
        node.clock.advance(90)
        with applied_trims(node) as trims:
            await node.app.node.retain_once()
        assert [len(trim.queues) for trim, _ in trims] == [3, 3, 2]
        assert [trim.low_index for trim, _ in trims] == [low_index, low_index, newest + 1]
        assert [trim.group_time_ms == 0 for trim, _ in trims] == [True, True, False]
        assert trims[-1][1] == 1, "an append waited for all of them"
        assert offsets(node) == [(2, 2)] * 8
    async with node_under_test(tmp_path) as node:
        assert offsets(node) == [(2, 2)] * 8


@pytest.mark.parametrize("queue_count", [3, 4])
async def test_a_purge_names_no_more_queues_in_an_entry(tmp_path: Path, queue_count: int) -> None:
    """All of them begin where they should, and all deleted messages are counted."""
    async with node_under_test(tmp_path) as node:
        for queue in range(queue_count):
            await node.append([b"a", b"b"], queue=queue)
        starts = [pb.QueueStart(queue=queue, offset=1) for queue in range(queue_count)]
        request = pb.PurgeRequest(raft_group=GROUP, topic=TOPIC, starts=starts)
        with applied_trims(node) as trims:
            response = await node.rpc.purge(request, CONTEXT)
        assert response.deleted_messages == queue_count
        assert [len(trim.queues) for trim, _ in trims] == [3, 1][: queue_count - 2]
        assert offsets(node) == [(1, 2)] * queue_count
