"""Deletion from the disk (rule 10): the leader's trims by time and size, then segments everywhere.

`plan_trims` decides on a leader; the TRIM command makes every replica follow. `low_indexes` says
below which entries a node's log may be deleted. Retention of a message that waited counts from its
delivery to its queue (rule 26); while it waits its pin keeps its entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_mq.commands import TrimCommand, TrimmedQueue
from strata_mq.layout import MESSAGE_DAY_MS, QueueRow, day_of
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.oldest_kept import OldestKept
from strata_storage.leading.pin_sweep import PinSweep
from strata_storage.leading.trims import trim_of_queues
from strata_storage.reads.offsets import Offsets
from strata_storage.rows.machine import GroupMachine

# Queues looked at before the event loop gets a turn, and the pause between two turns: a walk over a
# million queues leaves the loop to others for half of its time.
_QUEUES_PER_TURN = 200
_PAUSE_S = 0.005


class RetentionSource(Protocol):
    """How long topics keep messages."""

    def retention_ms(self, topic_id: int) -> int | None:
        """Return a topic's retention; None: not known here."""


class FixedRetention:
    """One retention for all topics, with exceptions."""

    def __init__(self, default_ms: int, by_topic: Mapping[int, int] | None = None) -> None:
        self._default_ms = default_ms
        self._by_topic = dict(by_topic or {})

    def retention_ms(self, topic_id: int) -> int:
        """Return a topic's retention."""
        return self._by_topic.get(topic_id, self._default_ms)


@dataclass(frozen=True, slots=True)
class TrimTerms:
    """Terms on which a raft group gives up messages, as of one turn of retention.

    Attributes:
        now_ms: group time.
        default_ms: retention of topics that the source does not know.
        queues_max: queues of one trim: all replicas apply it at once, without a pause.
        floor_index: messages of earlier entries go early, because the log is too large; 0: none.
        oldest_last: last entry of the replica in the log's oldest segment; 0: that has none, or is
            still written.
    """

    now_ms: int
    default_ms: int
    queues_max: int
    floor_index: int = 0
    oldest_last: int = 0


async def plan_trims(
    machine: GroupMachine,
    source: RetentionSource,
    sweep: PinSweep,
    *,
    terms: TrimTerms,
    goes_to_tier: Callable[[int], bool] = lambda topic_id: False,
    oldest: OldestKept | None = None,
) -> AsyncIterator[TrimCommand]:
    """Decide what a raft group gives up; ask for a trim only when the one before it is applied.

    The last trim says what the log may give up, and which pins go.

    Args:
        machine: of the leader.
        source: retention by topic.
        sweep: finds the pins that go with the messages.
        terms: of this turn.
        goes_to_tier: says of a topic that its messages do not go early: the log gives them up
            when the tier has them.
        oldest: gets the store times of what is kept; None: nobody asks.
    """
    offsets = Offsets(machine)
    seen = OldestKept()
    trimmed: list[TrimmedQueue] = []
    low_index = machine.state.raft_index + 1
    reach = 0
    # Id rows of yesterday stay: repeats of sends and ends of transactions are looked up in them.
    oldest_ms = terms.now_ms - MESSAGE_DAY_MS
    async for topic_id, queue, row in queues_in_turns(machine):
        if row.min_offset == row.next_offset:
            continue
        if len(trimmed) >= terms.queues_max:
            yield trim_of_queues(machine, trimmed)
            trimmed = []
        retention_ms = source.retention_ms(topic_id)
        cutoff_ms = terms.now_ms - (terms.default_ms if retention_ms is None else retention_ms)
        floor = 0 if goes_to_tier(topic_id) else terms.floor_index
        min_offset = _first_kept(machine, offsets, topic_id, queue, row, cutoff_ms, floor)
        if min_offset > row.min_offset:
            trimmed.append(TrimmedQueue(topic_id, queue, min_offset))
            reach = max(reach, _reach_of(machine, trimmed[-1]))
        if min_offset == row.next_offset:
            continue
        run = machine.consume_queues.next_run(topic_id, queue, min_offset)
        if run is not None:
            oldest_ms = min(oldest_ms, run[1].store_time_ms)
            if (machine.tier.commit_offset(topic_id, queue) or 0) > min_offset:
                seen.see_tiered(run[1].store_time_ms)
        local = machine.tier.local_offset(topic_id, queue)
        if local > min_offset:
            # The log may give up what the tier has instead (docs/adr/0022).
            run = machine.consume_queues.next_run(topic_id, queue, local)
        if run is not None:
            low_index = min(low_index, run[1].offset_index)
            seen.see_local(run[1].store_time_ms)
    (oldest or OldestKept()).take_over(seen)
    min_offsets = {(topic_id, queue): min_offset for topic_id, queue, min_offset in trimmed}
    pins = await sweep.sweep(machine, min_offsets, terms.now_ms, reach)
    if pins.low_index is not None:
        low_index = min(low_index, pins.low_index)
    if trimmed or pins.runs or pins.pending or _is_gain(machine, low_index, oldest_ms, terms):
        yield TrimCommand(low_index, oldest_ms, trimmed, pins.runs, pins.pending)


def _reach_of(machine: GroupMachine, trimmed: TrimmedQueue) -> int:
    """Return a raft index behind which no trimmed message of a queue got its offset.

    They got it before the first one that stays did.
    """
    run = machine.consume_queues.next_run(trimmed.topic_id, trimmed.queue, trimmed.min_offset)
    return machine.state.raft_index if run is None else run[1].offset_index


def _is_gain(machine: GroupMachine, low_index: int, oldest_ms: int, terms: TrimTerms) -> bool:
    """Whether a trim that deletes no message is worth its entry.

    That entry would make the next trim due: without work in between it would give up nothing but
    the trim before it. So a raft group without work comes to rest. It still trims once a day, for
    rows that expire by day, and when its last trims are all that it has in the oldest segment.
    """
    if low_index <= machine.low_index:
        return False
    has_worked = machine.worked_index >= machine.low_index
    is_in_the_way = machine.low_index <= terms.oldest_last < low_index
    return has_worked or is_in_the_way or day_of(oldest_ms) > machine.trimmed_day


async def queues_in_turns(machine: GroupMachine) -> AsyncIterator[tuple[int, int, QueueRow]]:
    """Yield (topic, queue, row) of all queues; one that comes meanwhile may be left out.

    The event loop has other turns in between, and the rows are never in memory all at once.
    """
    place = None
    while page := machine.rows.queues.after(place, _QUEUES_PER_TURN):
        for each in page:
            yield each
        if len(page) < _QUEUES_PER_TURN:
            return
        place = page[-1][:2]
        await asyncio.sleep(_PAUSE_S)


def _first_kept(
    machine: GroupMachine,
    offsets: Offsets,
    topic_id: int,
    queue: int,
    row: QueueRow,
    cutoff_ms: int,
    floor_index: int,
) -> int:
    first = machine.consume_queues.before(topic_id, queue, row.min_offset)
    if first is not None:
        _, cq_row = first
        if cq_row.store_time_ms >= cutoff_ms and cq_row.offset_index >= floor_index:
            return row.min_offset
    return offsets.first_of(
        topic_id,
        queue,
        row,
        lambda run: run.store_time_ms >= cutoff_ms and run.offset_index >= floor_index,
    )


def low_indexes(
    engines: Sequence[GroupEngine], checkpoint_indexes: Mapping[int, int]
) -> dict[int, int]:
    """Return per replica id the lowest index that this node's log must keep.

    An entry may go when its trim is applied, its rows are persisted, and a checkpoint covers it,
    so that rows can still be rebuilt (rule 6). The entry at the applied index stays: raft asks
    for its term. While a snapshot is taken in nothing goes: what the log needs then, the rows that
    are being replaced do not say.
    """
    return {
        engine.replica_id: min(
            engine.machine.low_index,
            engine.machine.persisted_index(),
            checkpoint_indexes.get(engine.replica_id, 0) + 1,
        )
        if engine.whole_rows() is not None
        else 0
        for engine in engines
    }
