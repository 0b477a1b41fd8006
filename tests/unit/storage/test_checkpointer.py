"""When checkpoints are written (rule 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.rows import AppliedRow
from strata_seglog.frames import Frame
from strata_seglog.index import ReplicaLog
from strata_seglog.log import CommitLog
from strata_state.ports import Row
from strata_storage.base.config import RetentionOptions
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.upkeep.checkpointer import Checkpointer, CheckpointReplica

Writes = Callable[[Sequence[Frame]], Awaitable[int]]

MIB = 1024 * 1024
DUE_BYTES = 4 * MIB


class FakeLog:
    """A log of which only the length counts; it has no checkpoint at first."""

    def __init__(self) -> None:
        self.first_position = 0
        self.end_position = 0
        # Where the second segment begins; and entries in the first one, by replica.
        self.second_position = 1 << 60
        self.in_oldest: dict[int, tuple[int, int]] = {}
        # Replica id -> first and last entry, where that counts.
        self.held: dict[int, tuple[int, int]] = {}
        # Replica id -> index of its checkpoint, which is at position 0.
        self.known: dict[int, int] = {}

    def replica(self, replica_id: int) -> ReplicaLog | None:
        """Return the entries that a replica has."""
        if replica_id not in self.held:
            return None
        first, last = self.held[replica_id]
        return ReplicaLog(replica_id, replica_id, first, last)

    def read_at(self, position: int) -> SimpleNamespace:
        """Return the checkpoint of the only replica that has one."""
        (index,) = self.known.values()
        return SimpleNamespace(index=index)

    def checkpoints(self, replica_id: int) -> list[int]:
        """Return none, unless a test says otherwise."""
        return [0] if replica_id in self.known else []

    def segments(self) -> list[SimpleNamespace]:
        """Return two: every checkpoint is in the first one, unless a test says otherwise."""
        return [
            SimpleNamespace(first_position=0, replicas=self.in_oldest),
            SimpleNamespace(first_position=self.second_position),
        ]


class FakeEngine:
    """A replica with rows, and what is written of them."""

    def __init__(self, log: FakeLog, replica_id: int, row_count: int) -> None:
        self.log = log
        self.replica_id = self.raft_group = replica_id
        self.replica = SimpleNamespace(read_only="", installing=False)
        self.row_count = row_count
        self.applied = 0
        self.written: list[int] = []
        self.machine = SimpleNamespace(
            applied_index=lambda: self.applied,
            settle=lambda: None,
            rows=SimpleNamespace(checkpoint=self.rows),
            low_index=0,
            generation=0,
        )

    def whole_rows(self) -> int | None:
        """See `GroupEngine.whole_rows`."""
        return None if self.replica.installing else self.machine.generation

    def append(self, size_bytes: int) -> None:
        """Have an entry applied."""
        self.applied += 1
        self.log.end_position += size_bytes
        self.machine.state = AppliedRow(self.applied, 1, 0)

    def rows(self) -> Iterator[Row]:
        """Iterate rows of 1 MiB."""
        return ((b"%d" % number, b"v" * MIB) for number in range(self.row_count))

    async def write_checkpoint(self, frames: Sequence[Frame]) -> int:
        """Take frames, after others had their turn."""
        for _ in range(3):
            await asyncio.sleep(0)
        for frame in frames:
            self.written.append(frame.index)
            self.log.end_position += sum(map(len, frame.payload))
        return self.log.end_position


async def run_read(read: Callable[[], list[Frame]]) -> list[Frame]:
    """Read at once."""
    return read()


class Node:
    """The checkpointer over two replicas, one of which has more rows than make one due."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.large = FakeEngine(self.log, 1, row_count=10)
        self.small = FakeEngine(self.log, 2, row_count=1)
        options = RetentionOptions(checkpoint_log_bytes=DUE_BYTES)
        self.counted = 0
        self.checkpointer = Checkpointer(
            cast(CommitLog, self.log), options, run_read, on_written=self._count
        )
        engines = (self.large, self.small)
        for engine in engines:
            self.checkpointer.opened(engine.replica_id)
            engine.append(1)
        self.engines = cast(Sequence[GroupEngine], engines)
        self.replicas = cast(
            Mapping[int, CheckpointReplica], {engine.raft_group: engine for engine in engines}
        )

    def _count(self) -> None:
        self.counted += 1

    async def write_due(self) -> None:
        """See `Checkpointer.write_due`."""
        await self.checkpointer.write_due(self.engines, self.replicas)

    async def write_behind(self, *, room_is_short: bool = False) -> None:
        """See `Checkpointer.write_behind`."""
        await self.checkpointer.write_behind(
            self.engines, self.replicas, room_is_short=room_is_short
        )


@pytest.fixture
def node() -> Node:
    """Both replicas have applied something, nothing is due."""
    return Node()


async def test_enough_log_makes_one_due_and_its_own_bytes_do_not(node: Node) -> None:
    """Rows of more bytes than make one due are written once per so many bytes of other log."""
    await node.write_due()
    assert node.large.written == []
    node.small.append(DUE_BYTES)
    node.large.append(1)
    for _ in range(3):
        await node.write_due()
        # News, so that another one could be written.
        node.large.append(1)
        node.small.append(1)
    assert set(node.large.written) == {2}
    assert set(node.small.written) == {2}
    assert node.counted == 2
    node.small.append(DUE_BYTES)
    await node.write_due()
    assert set(node.large.written) == {2, 5}


async def test_a_checkpoint_in_the_oldest_segment_is_not_written_in_every_turn(node: Node) -> None:
    """Rows of more than a segment are written again after enough other log, or for lack of room."""
    await node.write_behind()
    assert (set(node.large.written), set(node.small.written)) == ({1}, {1})
    for _ in range(5):
        # The entry of a trim: nothing but the newest entries is needed.
        node.large.append(1)
        node.large.machine.low_index = node.large.applied
        await node.write_behind()
    assert set(node.large.written) == {1}
    node.large.append(DUE_BYTES)
    for _ in range(3):
        await node.write_behind()
    assert set(node.large.written) == {1, 7}
    node.large.append(1)
    await node.write_behind(room_is_short=True)
    assert set(node.large.written) == {1, 7, 8}


async def test_only_a_checkpoint_that_is_in_the_way_is_written_again(node: Node) -> None:
    """Not for entries of later segments, nor for those that are not applied."""
    await node.write_behind()
    node.log.second_position = 1
    for engine in (node.large, node.small):
        engine.append(2 * DUE_BYTES)
        engine.machine.low_index = engine.applied + 1
    node.log.in_oldest = {1: (1, 1), 2: (1, 3)}
    await node.write_behind()
    assert (set(node.large.written), set(node.small.written)) == ({1}, {1})
    node.log.in_oldest = {1: (1, 1), 2: (1, 2)}
    await node.write_behind()
    assert (set(node.large.written), set(node.small.written)) == ({1}, {1, 2})


async def test_two_checkpoints_of_a_replica_do_not_mingle(node: Node) -> None:
    """One that is due and one that retention needs, asked for at once, come one after the other."""
    node.large.append(DUE_BYTES)

    async def behind() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        node.large.append(1)
        await node.write_behind(room_is_short=True)

    await asyncio.gather(node.write_due(), behind())
    assert node.large.written == sorted(node.large.written)
    assert set(node.large.written) == {2, 3}


async def test_a_replica_that_begins_an_install_while_another_is_written_is_left_out(
    node: Node,
) -> None:
    """Its rows are neither settled nor written: they are a mix of two states."""
    settled: list[bool] = []
    node.small.machine.settle = lambda: settled.append(node.small.replica.installing)
    write = node.large.write_checkpoint

    async def slow(frames: Sequence[Frame]) -> int:
        node.small.replica.installing = True
        return await write(frames)

    node.large.write_checkpoint = slow  # type: ignore[method-assign]
    node.large.append(DUE_BYTES)
    node.small.append(1)
    await node.write_due()
    assert set(node.large.written) == {2}
    assert True not in settled
    assert node.small.written == []
    assert node.small.replica_id not in node.checkpointer.indexes


async def test_a_replica_whose_rows_are_being_replaced_gets_no_checkpoint(node: Node) -> None:
    """It is due, and its turn comes in the middle of an install; afterwards it is written."""
    node.small.append(DUE_BYTES)
    node.small.replica.installing = True
    await node.write_due()
    assert node.small.written == []
    node.small.replica.installing = False
    await node.write_due()
    assert set(node.small.written) == {node.small.replica_id}


async def test_replicas_take_turns_at_writing(node: Node) -> None:
    """One with many rows does not keep the others waiting (rule 39)."""
    order: list[int] = []
    for engine in (node.large, node.small):
        write = engine.write_checkpoint

        async def noted(
            frames: Sequence[Frame], number: int = engine.replica_id, write: Writes = write
        ) -> int:
            order.append(number)
            return await write(frames)

        engine.write_checkpoint = noted  # type: ignore[method-assign]
    node.large.append(DUE_BYTES)
    node.small.append(1)
    await node.write_due()
    assert order[:2] == [1, 2]
    assert order.count(1) > order.count(2)
    assert node.checkpointer.indexes == {1: 2, 2: 2}


async def test_more_replicas_than_turns_are_all_written() -> None:
    """So many pictures of the rows are kept at once, the others begin when one has ended."""
    log = FakeLog()
    engines = [FakeEngine(log, number, row_count=2) for number in range(1, 21)]
    options = RetentionOptions(checkpoint_log_bytes=DUE_BYTES)
    checkpointer = Checkpointer(cast(CommitLog, log), options, run_read)
    for engine in engines:
        checkpointer.opened(engine.replica_id)
        engine.append(DUE_BYTES)
    replicas = cast(Mapping[int, CheckpointReplica], {each.raft_group: each for each in engines})
    await checkpointer.write_due(cast(Sequence[GroupEngine], engines), replicas)
    assert checkpointer.indexes == {number: 1 for number in range(1, 21)}


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_install_voids_the_checkpoint_that_is_being_written(
    node: Node, is_done: bool
) -> None:
    """It ends without its last part, counts as none, and what the install asked for is written."""
    write, engine = node.large.write_checkpoint, node.large
    parts: list[bytes] = []

    async def slow(frames: Sequence[Frame]) -> int:
        parts.extend(frame.payload[0] for frame in frames)
        if len(parts) == len(frames):
            engine.replica.installing = True
            if is_done:
                engine.replica.installing = False
                engine.machine.generation += 1
                node.checkpointer.want(engine.replica_id)
        return await write(frames)

    engine.write_checkpoint = slow  # type: ignore[method-assign]
    engine.append(DUE_BYTES)
    await node.write_due()
    assert not any(part[1] for part in parts), "the last part was written"
    assert engine.replica_id not in node.checkpointer.indexes
    engine.replica.installing = False
    engine.machine.generation = 1
    node.checkpointer.want(engine.replica_id)
    await node.write_due()
    assert parts[-1][1], "no checkpoint of the new rows"
    assert node.checkpointer.indexes[engine.replica_id] == 2


async def test_reads_that_are_refused_put_a_checkpoint_off(node: Node) -> None:
    """Too many reads wait: the checkpoint is written later, and nothing ends."""
    node.large.append(DUE_BYTES)
    refused = [True]

    async def run(read: Callable[[], list[Frame]]) -> list[Frame]:
        if refused:
            refused.pop()
            raise Refused(pb.OUTCOME_OVERLOADED, "many reads wait")
        return read()

    node.checkpointer._run_read = run
    await node.write_due()
    assert node.large.written == []
    await node.write_due()
    assert set(node.large.written) == {2}


@pytest.mark.parametrize(
    ("held", "known", "is_written"),
    [
        ((21, 24), 0, True),
        ((21, 24), 12, True),
        # A snapshot, and nothing since.
        ((0, 0), 0, True),
        ((21, 24), 20, False),
        ((1, 24), 0, False),
        # All entries were freed: the checkpoint has what they did.
        ((0, 0), 24, False),
    ],
)
async def test_a_start_wants_a_checkpoint_where_the_log_does_not_reach_back(
    held: tuple[int, int], known: int, is_written: bool
) -> None:
    """A crash came between a snapshot and its checkpoint: the rows must not be all there is."""
    log = FakeLog()
    log.held[1] = held
    if known:
        log.known[1] = known
    engine = FakeEngine(log, 1, row_count=1)
    engine.applied = 23
    engine.append(1)
    options = RetentionOptions(checkpoint_log_bytes=DUE_BYTES)
    checkpointer = Checkpointer(cast(CommitLog, log), options, run_read)
    checkpointer.opened(1)
    replicas = cast(Mapping[int, CheckpointReplica], {1: engine})
    for _ in range(2):
        await checkpointer.write_due(cast(Sequence[GroupEngine], [engine]), replicas)
    assert engine.written == ([24] * 2 if is_written else [])
