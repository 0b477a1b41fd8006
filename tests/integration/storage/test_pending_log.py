"""Messages that wait, over restarts, lost rows, freed segments and repeats of their sends."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import PartKind
from strata_mq.layout.hashing import pack_message_id
from strata_state.ports import Row
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock, until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    message_id,
    node_under_test,
    small_config,
)
from tests.integration.storage.waiting import (
    append,
    delay,
    end,
    half,
    let_pass,
    pop_bodies,
    waiting_batch,
)

_MIB = 1024 * 1024
_DAY_S = 86_400
# Small messages are all kept; of the busy topic next to nothing is.
BUSY_TOPIC_ID = 8
RETENTION = FixedRetention(60_000, {TOPIC.topic_id: 72 * 3_600_000, BUSY_TOPIC_ID: 1_000})
CONFIG = small_config(recent_bytes=0)
COMMIT, ROLLBACK = pb.TRANSACTION_END_COMMIT, pb.TRANSACTION_END_ROLLBACK
MESSAGE_ID = "0190DB80539A6F48DE88837ED15B1664A0"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as made:
        yield made


def rows_of(node: NodeUnderTest) -> list[Row]:
    """Return all rows of the raft group but the applied row: the no-op of a term moves it."""
    rows = list(node.app.node.engine(GROUP).machine.rows.all())
    return [row for row in rows if row[0][4] != 0]


def waiting_of(node: NodeUnderTest) -> list[tuple[int, int, int]]:
    """Return (due time, raft index, ordinal) of what waits."""
    rows = node.app.node.engine(GROUP).machine.rows
    return [tuple(key) for key, _ in rows.pending.scan()]  # type: ignore[misc]


def retracted(node: NodeUnderTest) -> list[tuple[int, int, int]]:
    return list(node.app.node.engine(GROUP).machine.rows.retracted.all())


def pin_count(node: NodeUnderTest) -> int:
    return len(list(node.app.node.engine(GROUP).machine.rows.pins.scan()))


async def repeat(
    node: NodeUnderTest, batch: bytes, *, boot_id: int, sequence: int
) -> pb.PartResult:
    """Append a batch with a number of its own; return the result of its one part."""
    request = pb.AppendRequest(
        broker_boot_id=boot_id,
        batches=[pb.GroupBatch(raft_group=GROUP, sequence=sequence, batch=batch)],
    )
    (result,) = (await node.rpc.append(request, CONTEXT)).results
    assert not result.refusal.outcome, result.refusal.reason
    (part,) = result.parts
    return part


async def find(node: NodeUnderTest, text: str) -> list[bytes]:
    """Look a message up by its id."""
    request = pb.QueryRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, message_id=text, max_messages=10
    )
    return [found.message for found in (await node.rpc.query(request, CONTEXT)).messages]


async def fill(node: NodeUnderTest, rng: random.Random, megabytes: int) -> None:
    """Write so much of the busy topic."""
    for _ in range(megabytes):
        bodies = [rng.randbytes(900_000)]
        result = await node.append(bodies, boot_id=0, topic_id=BUSY_TOPIC_ID, queue=-1)
        assert not result.HasField("refusal"), result.refusal


async def retain(node: NodeUnderTest, seconds: float = 2.0) -> None:
    """Let time go by and retention work: a trim, then what it frees."""
    let_pass(node, seconds)
    await node.app.node.retain_once()
    await node.app.node.retain_once()


async def apply_all(node: NodeUnderTest) -> None:
    await node.app.node.engine(GROUP).barrier()


# Names and repeats ------------------------------------------------------------------------------


async def test_a_repeat_gets_the_first_receipt(tmp_path: Path) -> None:
    """By the batch's number and by the messages' ids, at once and after a restart (rule 23)."""
    clock, ids = ManualClock(), [message_id(b"a"), message_id(b"b")]
    due_ms = clock.wall_ms() + 60_000
    batch = waiting_batch([b"a", b"b"], [due_ms, due_ms], ids=ids)
    again = waiting_batch([b"new", b"b"], [due_ms, due_ms], ids=[message_id(b"c"), ids[1]])
    async with node_under_test(tmp_path, clock=clock) as node:
        await node.append([b"plain"])
        first = await repeat(node, batch, boot_id=5, sequence=1)
        assert first.first_pending.index > 0
        assert first.first_pending.ordinal == 0
        assert await repeat(node, batch, boot_id=5, sequence=1) == first
        assert waiting_of(node) == [(due_ms, first.first_pending.index, n) for n in (0, 1)]
    for sequence in (2, 3):
        async with node_under_test(tmp_path, clock=clock) as node:
            if sequence == 2:
                assert await repeat(node, batch, boot_id=5, sequence=1) == first
            part = await repeat(node, again, boot_id=5, sequence=sequence)
            *known, last = part.duplicates
            # The new message of the first repeat is known to the second one.
            assert len(known) == sequence - 2
            assert (last.ordinal, last.pending.index, last.pending.ordinal) == (
                1,
                first.first_pending.index,
                1,
            )
            assert len(waiting_of(node)) == 3


async def test_a_repeat_gets_the_first_receipt_whatever_became_of_the_message(
    node: NodeUnderTest,
) -> None:
    """Committed, rolled back, a day later: the name is the same; within one batch, too."""
    ids = [message_id(b"a"), message_id(b"b")]
    clock = node.clock
    # A minute before midnight, group time.
    clock.advance((_DAY_S - 60) - clock.wall_ms() // 1_000 % _DAY_S)
    due = [clock.wall_ms() + 600_000] * 2
    batch = waiting_batch([b"a", b"b"], due, kind=PartKind.HALF, ids=ids)
    first = (await repeat(node, batch, boot_id=5, sequence=1)).first_pending
    assert not (await end(node, first, COMMIT)).HasField("refusal")
    second = pb.PendingRef(index=first.index, ordinal=1)
    assert not (await end(node, second, ROLLBACK)).HasField("refusal")
    for sequence in (2, 3):
        part = await repeat(node, batch, boot_id=5, sequence=sequence)
        found = [(each.pending.index, each.pending.ordinal) for each in part.duplicates]
        assert found == [(first.index, 0), (first.index, 1)]
        popped = await pop_bodies(node, invisible_ms=3_600_000)
        assert popped == ([b"a"] if sequence == 2 else [])
        let_pass(node, 90)
    twice = [message_id(b"twice")] * 2
    batch = waiting_batch([b"twice", b"twice"], due, ids=twice)
    part = await repeat(node, batch, boot_id=5, sequence=4)
    (duplicate,) = part.duplicates
    assert duplicate.ordinal == 1
    assert duplicate.pending == part.first_pending


async def test_midnight_and_a_short_retention_hide_no_repeat(tmp_path: Path) -> None:
    """Id rows of yesterday stay, even if nothing stored yesterday does (rule 23)."""
    clock, identity, plain = ManualClock(), message_id(b"half"), message_id(b"plain")
    clock.advance((_DAY_S - 5) - clock.wall_ms() // 1_000 % _DAY_S)
    batch = waiting_batch(
        [b"half"], [clock.wall_ms() + 600_000], kind=PartKind.HALF, ids=[identity]
    )
    retention = FixedRetention(1_000)
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        first = (await repeat(node, batch, boot_id=5, sequence=1)).first_pending
        await node.append([b"plain"], ids=[plain])
        await retain(node, 60)
        (known,) = (await repeat(node, batch, boot_id=5, sequence=2)).duplicates
        assert known.pending == first
        again = (await node.append([b"plain"], ids=[plain])).parts[0]
        assert len(again.duplicates) == 1
        assert not (await end(node, first, COMMIT)).HasField("refusal")


async def test_plain_and_waiting_messages_share_the_window_of_known_ids(
    node: NodeUnderTest,
) -> None:
    """A repeat of an id is told where its message is, whichever way the id came first."""
    identity = message_id(b"x")
    due_ms = node.clock.wall_ms() + 60_000
    batch = waiting_batch([b"x"], [due_ms], ids=[identity])
    first = (await repeat(node, batch, boot_id=5, sequence=1)).first_pending
    again = (await node.append([b"x"], ids=[identity])).parts[0]
    assert again.duplicates[0].pending == first
    plain = message_id(b"y")
    await node.append([b"y"], ids=[plain])
    batch = waiting_batch([b"y"], [due_ms], ids=[plain])
    (duplicate,) = (await repeat(node, batch, boot_id=5, sequence=2)).duplicates
    assert not duplicate.HasField("pending")
    assert (duplicate.queue, duplicate.offset) == (0, 0)


async def test_a_part_that_waits_is_refused_as_others_are(tmp_path: Path) -> None:
    """A queue, or a topic, that is not this raft group's; a sealed queue; a dropped topic."""
    due = [ManualClock().wall_ms() + 60_000]
    async with node_under_test(tmp_path, raft_groups=(GROUP, 2)) as node:
        part = await repeat(node, waiting_batch([b"x"], due, queue=1), boot_id=5, sequence=1)
        assert part.outcome == pb.OUTCOME_WRONG_GROUP
        await node.app.node.engine(GROUP).seal(TOPIC.topic_id, 0, 2)
        part = await repeat(node, waiting_batch([b"x"], due, queue=0), boot_id=5, sequence=2)
        assert part.outcome == pb.OUTCOME_SEALED
        part = await repeat(node, waiting_batch([b"x"], due), boot_id=5, sequence=3)
        assert part.outcome == pb.OUTCOME_OK, "another queue of the topic is open"
        await node.app.node.engine(GROUP).seal(TOPIC.topic_id, 2, 2)
        part = await repeat(node, waiting_batch([b"x"], due), boot_id=5, sequence=4)
        assert part.outcome == pb.OUTCOME_SEALED
        request = pb.DropRequest(raft_group=GROUP, topic_id=TOPIC.topic_id)
        assert not (await node.rpc.drop(request, CONTEXT)).HasField("refusal")
        part = await repeat(node, waiting_batch([b"x"], due), boot_id=5, sequence=5)
        assert part.outcome == pb.OUTCOME_WRONG_GROUP


async def test_a_message_is_found_by_its_id_once_it_is_placed(node: NodeUnderTest) -> None:
    """Not while it waits; after that once, though two days have a row of it."""
    clock = node.clock
    batch = waiting_batch(
        [b"found"], [clock.wall_ms() + 2 * _DAY_S * 1_000], ids=[pack_message_id(MESSAGE_ID)]
    )
    await append(node, batch)
    await apply_all(node)
    assert await find(node, MESSAGE_ID) == []
    let_pass(node, 2 * _DAY_S)
    assert await pop_bodies(node, wait_ms=60_000) == [b"found"]
    assert await find(node, MESSAGE_ID) == [b"found"]


# Rows that are lost, segments that are freed ----------------------------------------------------


async def work(node: NodeUnderTest, rng: random.Random, rounds: int) -> list[bytes]:
    """Store plain, delayed and half messages; end some; return the bodies that wait."""
    delayed: list[bytes] = []
    for number in range(rounds):
        bodies = [
            b"%d-%d-" % (number, at) + rng.randbytes(100) for at in range(rng.randrange(1, 6))
        ]
        what = number % 3
        if what == 0:
            await node.append(bodies, queue=-1)
        elif what == 1:
            await delay(node, bodies, 3_600_000 + rng.randrange(10_000))
            delayed += bodies
        else:
            names = [await half(node, body) for body in bodies]
            for name in names[::2]:
                how = rng.choice((COMMIT, ROLLBACK))
                assert not (await end(node, name, how)).HasField("refusal")
        let_pass(node, 0.5)
    await apply_all(node)
    return delayed


async def test_the_same_rows_come_back_from_the_log_alone(tmp_path: Path) -> None:
    """Pending rows, pins and the rows of placed messages, byte for byte."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node:
        await work(node, random.Random(4), 45)
        # Checks of half messages that are due are put off meanwhile.
        await until(lambda: all(due_ms > clock.wall_ms() for due_ms, *_ in waiting_of(node)))
        before = rows_of(node)
        assert {13, 14} <= {key[4] for key, _ in before}
    async with node_under_test(tmp_path, clock=clock) as node:
        await apply_all(node)
        assert rows_of(node) == before
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock) as node:
        await apply_all(node)
        assert rows_of(node) == before


async def test_a_recalled_message_does_not_come_back_with_lost_rows(tmp_path: Path) -> None:
    """The run is split again; its neighbours are delivered; its entry goes with its queue."""
    clock, retention = ManualClock(), FixedRetention(60_000)
    ids = [message_id(b"first"), pack_message_id(MESSAGE_ID), message_id(b"third")]
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        await node.append([b"first", b"second", b"third"], ids=ids)
        request = pb.RecallRequest(
            raft_group=GROUP,
            topic_id=TOPIC.topic_id,
            position=pb.QueueOffset(queue=0, offset=1),
            message_id=MESSAGE_ID,
        )
        response = await node.rpc.recall(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        await apply_all(node)
        before = rows_of(node)
        assert retracted(node) == [(TOPIC.topic_id, 0, 1)]
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        assert rows_of(node) == before
        assert await pop_bodies(node) == [b"first", b"third"]
        assert await find(node, MESSAGE_ID) == []
        await retain(node, 61)
        assert await node.rpc.recall(request, CONTEXT) == pb.RecallResponse()
        await retain(node, 2 * _DAY_S)
        await node.append([b"fourth"], boot_id=0)
        await retain(node, 61)
        assert retracted(node) == []


async def test_the_pin_of_a_recalled_message_outlives_the_entry_that_placed_it(
    tmp_path: Path,
) -> None:
    """Relocation gives that entry up; a repeat still finds the pin (rule 37)."""
    clock, rng = ManualClock(), random.Random(7)
    options = {"clock": clock, "config": CONFIG, "retention": RETENTION}
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        for queue in range(TOPIC.queue_count):
            await node.append([b"kept"], queue=queue)
        due_ms = clock.wall_ms() + 1_000
        ids = [pack_message_id(MESSAGE_ID)]
        name = await append(node, waiting_batch([b"later"], [due_ms], ids=ids))
        let_pass(node, 2.0)
        await until(lambda: not waiting_of(node))
        ((_, pin),) = node.app.node.engine(GROUP).machine.rows.pins.scan()
        request = pb.RecallRequest(
            raft_group=GROUP,
            topic_id=TOPIC.topic_id,
            position=pb.QueueOffset(queue=pin.queue, offset=pin.offset),
            message_id=MESSAGE_ID,
        )
        response = await node.rpc.recall(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        for _ in range(3):
            await fill(node, rng, 9)
            await retain(node)
        assert node.app.node.status().log_first_position > 0
        await apply_all(node)
        before = [row for row in rows_of(node) if row[0][4] not in (6, 7)]
        assert pin_count(node) == 1
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        assert [row for row in rows_of(node) if row[0][4] not in (6, 7)] == before
        by_name = pb.RecallRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, pending=name, message_id=MESSAGE_ID
        )
        for repeat_of in (request, by_name):
            response = await node.rpc.recall(repeat_of, CONTEXT)
            assert not response.HasField("refusal"), response.refusal


async def test_rows_come_back_from_a_checkpoint_and_the_entries_that_are_left(
    tmp_path: Path,
) -> None:
    """Segments around the waiting messages were freed; they are delivered all the same."""
    clock, rng = ManualClock(), random.Random(5)
    options = {"clock": clock, "config": CONFIG, "retention": RETENTION}
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        delayed = await work(node, rng, 12)
        for _ in range(3):
            await fill(node, rng, 9)
            delayed += await work(node, rng, 6)
            await retain(node)
        assert node.app.node.status().log_first_position >= 16 * _MIB
        (oldest, *_) = waiting_of(node)
        first_index = node.app.node.status().replicas[0].applied_index
        assert oldest[1] < first_index
        await work(node, rng, 3)
        await nothing_due(node)
        before = [row for row in rows_of(node) if row[0][4] not in (6, 7)]
        delayed_there = len(waiting_of(node))
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        assert [row for row in rows_of(node) if row[0][4] not in (6, 7)] == before
        assert len(waiting_of(node)) == delayed_there
        let_pass(node, 2 * 3_600)
        engine = node.app.node.engine(GROUP)
        await until(lambda: _delayed_left(node) == 0)
        await engine.barrier()
        bodies: list[bytes] = []
        while popped := await pop_bodies(node, max_messages=500):
            bodies += popped
        assert set(delayed) <= set(bodies), "a delayed message was lost"
        assert len(bodies) == len(set(bodies)), "a message was delivered twice"


async def nothing_due(node: NodeUnderTest) -> None:
    """Wait until all that is due was decided: a check, for one, changes its message's row."""
    engine = node.app.node.engine(GROUP)
    now_ms = engine.leading().proposer.now_ms()
    pending = engine.machine.rows.pending
    await until(lambda: all(key.due_ms > now_ms for key, _ in pending.scan()))
    await engine.barrier()


def _delayed_left(node: NodeUnderTest) -> int:
    rows = node.app.node.engine(GROUP).machine.rows
    return sum(1 for _, row in rows.pending.scan() if row.kind is PartKind.DELAYED)


async def test_one_message_that_waits_for_weeks_does_not_keep_the_log(tmp_path: Path) -> None:
    """Relocation keeps its entry, and of what was placed after it only what is retained."""
    clock, rng = ManualClock(), random.Random(6)
    retention = FixedRetention(60_000, {BUSY_TOPIC_ID: 1_000, TOPIC.topic_id: 10_000})
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, retention=retention) as node:
        await delay(node, [b"in a month"], 30 * _DAY_S * 1_000)
        for _ in range(6):
            names = [await half(node, rng.randbytes(50)) for _ in range(5)]
            for name in names:
                assert not (await end(node, name, COMMIT)).HasField("refusal")
            await fill(node, rng, 9)
            await retain(node, 12)
            assert sum(each.stat().st_size for each in (tmp_path / "log").iterdir()) <= 32 * _MIB
        assert node.app.node.status().log_first_position > 24 * _MIB
        for _ in range(3):
            # Pins of committed messages stay for as long as a commit may be repeated.
            await retain(node, 601)
        assert pin_count(node) == 1, "pins of trimmed messages are left"
        assert len(waiting_of(node)) == 1
        let_pass(node, 30 * _DAY_S)
        assert await pop_bodies(node, wait_ms=60_000) == [b"in a month"]


async def test_placed_messages_stay_for_as_long_as_their_topic_keeps_messages(
    tmp_path: Path,
) -> None:
    """Retention counts from the delivery, however old the message's entry is (rule 26)."""
    clock, rng = ManualClock(), random.Random(7)
    retention = FixedRetention(60_000, {BUSY_TOPIC_ID: 1_000, TOPIC.topic_id: 600_000})
    options = {"clock": clock, "config": CONFIG, "retention": retention}
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        await node.append([b"before"])
        await delay(node, [b"later"], 3_600_000)
        await fill(node, rng, 18)
        await retain(node, 3_601)
        await until(lambda: not waiting_of(node))
        await retain(node, 500)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, **options) as node:  # type: ignore[arg-type]
        await fill(node, rng, 18)
        await retain(node, 50)
        assert await pop_bodies(node) == [b"later"]
        assert pin_count(node) == 1
        await retain(node, 60)
        assert await pop_bodies(node, consumer_group_id=6) == []
        assert pin_count(node) == 0


async def test_what_waits_of_a_dropped_topic_goes_with_the_next_trim(node: NodeUnderTest) -> None:
    """Rows and pins; the other topic's stay; nothing of it is delivered."""
    due = [node.clock.wall_ms() + 5_000] * 30
    bodies = [b"%d" % number for number in range(30)]
    await append(node, waiting_batch(bodies, due, topic_id=BUSY_TOPIC_ID))
    await delay(node, [b"other"], 5_000)
    request = pb.DropRequest(raft_group=GROUP, topic_id=BUSY_TOPIC_ID)
    assert not (await node.rpc.drop(request, CONTEXT)).HasField("refusal")
    await node.app.node.retain_once()
    await apply_all(node)
    assert len(waiting_of(node)) == 1
    assert pin_count(node) == 1
    let_pass(node, 6)
    assert await pop_bodies(node, wait_ms=60_000) == [b"other"]


async def test_messages_in_flight_when_their_topic_is_dropped_stop_nobody(
    node: NodeUnderTest,
) -> None:
    """Appends that were decided before the drop was applied come behind it in the log."""
    engine = node.app.node.engine(GROUP)
    await node.append([b"first"])
    names: Sequence[pb.PendingRef] = [await half(node, b"half"), await half(node, b"half 2")]
    leader = engine.leader
    assert leader is not None
    dropping = node.rpc.drop(pb.DropRequest(raft_group=GROUP, topic_id=TOPIC.topic_id), CONTEXT)
    sending = [
        node.append([b"plain"]),
        delay(node, [b"delayed"], 0),
        end(node, names[0], COMMIT),
        end(node, names[1], ROLLBACK),
    ]
    await asyncio.gather(dropping, *sending, return_exceptions=True)
    await engine.barrier()
    assert not engine.replica.read_only
    assert engine.machine.queues.get(TOPIC.topic_id, 0) is None
    result = await node.append([b"alive"], topic_id=BUSY_TOPIC_ID)
    assert not result.HasField("refusal")
