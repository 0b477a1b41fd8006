"""A repeated message is stored once for as long as the window says, however little it can hold."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_state.day_rows import IdRows
from strata_storage.base.dedupe import DedupeOptions
from strata_storage.group.window_loader import load_window
from strata_storage.process import new_leaders
from strata_testing import ManualClock, until
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    NodeUnderTest,
    node_under_test,
    small_config,
)

WINDOW_S = 600


def official(clock: ManualClock, number: int) -> bytes:
    """Return an id as official clients make it now."""
    seconds = clock.wall_ms() // 1_000 - 1_609_459_200
    return b"\x01" + bytes(8) + seconds.to_bytes(4, "big") + number.to_bytes(4, "big")


def foreign(number: int) -> bytes:
    """Return an id that says nothing of its time."""
    return b"\x00" + number.to_bytes(16, "big")


def found(result: pb.GroupResult) -> list[tuple[int, int]]:
    """Return (ordinal, offset) of the messages that were known."""
    return [(each.ordinal, each.offset) for each in result.parts[0].duplicates]


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list of the ids whose rows are read from now on."""
    reads: list[bytes] = []
    get = IdRows.get

    def noted(rows: IdRows, day: int, topic_id: int, message_id: bytes) -> object:
        reads.append(message_id)
        return get(rows, day, topic_id, message_id)

    monkeypatch.setattr(IdRows, "get", noted)
    return reads


async def flood(node: NodeUnderTest, count: int) -> None:
    """Append more ids than the window holds."""
    for first in range(0, count, 500):
        ids = [b"\x01" + os.urandom(16) for _ in range(500)]
        await node.append([b"x"] * 500, ids=ids, queue=1)
        assert first < count


@pytest.mark.parametrize("is_official", [False, True])
async def test_a_flood_makes_the_window_no_shorter(tmp_path: Path, is_official: bool) -> None:
    """An id that had to leave memory is found in its row."""
    clock = ManualClock()
    config = small_config(max_dedupe_ids=1_000)
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        message_id = official(clock, 1) if is_official else foreign(1)
        await node.append([b"first"], ids=[message_id])
        clock.advance(30)
        await flood(node, 2_000)
        clock.advance(30)
        await node.app.node.engine(1).barrier()
        assert not node.app.node.engine(1).leading().appends.window.known(7, message_id)
        again = await node.append([b"first", b"new"], ids=[message_id, foreign(2)])
        assert found(again) == [(0, 0)]


async def test_a_new_leader_finds_what_it_has_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest part of the log is read; a repeat of what came before is stored once."""
    clock = ManualClock()

    def short(log: object, replica_id: int, last: int, now_ms: int, options: object) -> object:
        little = DedupeOptions(rebuild_max_bytes=1)
        return load_window(log, replica_id, last, now_ms, little)  # type: ignore[arg-type]

    monkeypatch.setattr(new_leaders, "load_window", short)
    ids = [foreign(1), official(clock, 1)]
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"first", b"second"], ids=ids)
        clock.advance(20)
        for number in range(100):
            await node.append([b"x"], ids=[foreign(10 + number)], queue=1)
    clock.advance(20)
    async with node_under_test(tmp_path, clock=clock) as node:
        appends = node.app.node.engine(1).leading().appends
        # The index rows that were read back are taken in.
        await until(lambda: appends.window.known(7, foreign(109)))
        again = await node.append([b"first", b"second"], ids=ids, boot_id=2)
        assert found(again) == [(0, 0), (1, 1)]


async def test_who_asks_for_an_id_is_told_of_what_is_on_its_way(tmp_path: Path) -> None:
    """A broker looks for the first send of a repeat: also for one that is not committed."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        for number in range(50):
            message_id = official(clock, number)
            request = pb.QueryRequest(
                raft_group=1, topic_id=7, message_id=message_id.hex().upper(), max_messages=1
            )
            append = asyncio.ensure_future(node.append([b"x"], ids=[message_id]))
            await asyncio.sleep(0)
            found = await node.rpc.query(request, CONTEXT)
            assert [message.offset for message in found.messages] == [number]
            await append


async def test_what_was_made_a_moment_ago_is_looked_up_in_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hot path: ids that say that they are younger than the window cost no read."""
    clock, reads = ManualClock(), noted_reads(monkeypatch)
    config = small_config(max_dedupe_ids=1_000)
    async with node_under_test(tmp_path, clock=clock, config=config) as node:
        await flood(node, 2_000)
        clock.advance(30)
        reads.clear()
        fresh = [official(clock, number) for number in range(50)]
        assert found(await node.append([b"x"] * 50, ids=fresh)) == []
        assert reads == []
        # By a clock that is an hour ahead, an hour behind, and without any.
        clock.advance(3_600)
        ahead = official(clock, 1)
        clock.now_s -= 3_600
        odd = [ahead, official(clock, 99)[:9] + bytes(4) + bytes(4), foreign(1)]
        assert found(await node.append([b"x"] * 3, ids=odd)) == []
        assert set(odd) <= set(reads)


async def test_nothing_is_looked_up_once_the_window_is_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with few messages knows all ids of the window, whatever they look like."""
    clock, reads = ManualClock(), noted_reads(monkeypatch)
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"x"], ids=[foreign(1)])
    clock.advance(WINDOW_S + 1)
    async with node_under_test(tmp_path, clock=clock) as node:
        reads.clear()
        await node.append([b"y"], ids=[foreign(2)], boot_id=2)
        assert reads == []


async def test_a_dead_letter_of_a_consumer_without_lease_is_stored_once(tmp_path: Path) -> None:
    """In the queue with the raft group's number alone; a repeat is known after a restart, too."""

    async def give_up(
        node: NodeUnderTest, queue: int, letter: bytes, number: int, boot_id: int = 1
    ) -> pb.PartResult:
        result = await node.append(
            [letter],
            ids=[foreign(number)],
            topic_id=DEAD_LETTER_TOPIC_ID,
            queue=queue,
            queue_count=0,
            boot_id=boot_id,
        )
        return result.parts[0]

    async with node_under_test(tmp_path) as node:
        wrong = await give_up(node, GROUP + 1, b"a", 1)
        assert wrong.outcome == pb.OUTCOME_WRONG_GROUP
        for number, letter in ((1, b"a"), (2, b"b")):
            part = await give_up(node, GROUP, letter, number)
            assert (part.outcome, part.base_offset) == (pb.OUTCOME_OK, number - 1)
            assert not part.duplicates
    async with node_under_test(tmp_path) as node:
        part = await give_up(node, GROUP, b"a", 1, boot_id=2)
        assert [(each.queue, each.offset) for each in part.duplicates] == [(GROUP, 0)]
        part = await give_up(node, GROUP, b"c", 3, boot_id=2)
        assert (part.base_offset, len(part.duplicates)) == (2, 0)
