"""New messages of a queue that a pop may take: those that its filter lets through.

The index is enough for tags: runs of messages that nobody wants cost one read of their hashes.
SQL92 asks for properties, so messages are read ahead of the pop (`read_ahead`), those that the
index does not rule out, and what is learnt is kept in `Matches`.

Invariant: `columns` does no I/O and never waits, so what it gives still holds when leases are
decided on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strata_mq.filters import MessageFilter
from strata_mq.layout import CqRow
from strata_mq.leases import Columns
from strata_runtime.turns import Turns
from strata_state.rows import ConsumerKey
from strata_storage.base.config import EngineOptions
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.matches import Matches
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.consume_queues import Run
from strata_storage.rows.machine import GroupMachine

# Messages read at once: as many as a pop usually takes, and some.
_READ_AT_ONCE = 64


class ScanBudget:
    """Limits of one scan of queues before other work gets its turn of the event loop.

    Attributes:
        offsets: to be looked at in the index.
        messages, message_bytes: to be read and given to a filter.
        filter_steps: of the filter (`strata_mq.filters.sql.stepwise`).
    """

    __slots__ = ("filter_steps", "message_bytes", "messages", "offsets")

    def __init__(self, options: EngineOptions) -> None:
        self.offsets = options.pop_scan_offsets
        self.messages = options.pop_scan_messages
        self.message_bytes = options.pop_scan_bytes
        self.filter_steps = options.pop_scan_filter_steps

    @property
    def spent(self) -> bool:
        """Whether no more messages may be read."""
        left = min(self.messages, self.message_bytes, self.offsets, self.filter_steps)
        return left <= 0


class _Reading(NamedTuple):
    """Messages to be read ahead: their offsets and places, and the end of what that covers."""

    offsets: list[int]
    locations: list[Location]
    end: int


class Candidates:
    """See the module docstring."""

    def __init__(self, machine: GroupMachine, reader: MessageReader, turns: Turns) -> None:
        self._machine = machine
        self._reader = reader
        self._turns = turns

    def columns(
        self,
        lease_set: LeaseSet,
        next_offset: int,
        message_filter: MessageFilter,
        wanted: int,
        budget: ScanBudget,
    ) -> list[Columns]:
        """Return runs from the head on, until so many are wanted or the budget is spent."""
        head, count = lease_set.leases.wants_columns(next_offset)
        end = head + count
        matches = None
        if message_filter.needs_messages:
            matches = lease_set.matches
            if matches is None or not matches.goes_on_from(message_filter, head):
                return []
            end = min(end, matches.end)
        columns: list[Columns] = []
        # Where the offsets begin that nobody wants and that no column covers yet.
        passed_from = at = head
        for base, row in self._runs(lease_set.key, head, end):
            if wanted <= 0 or (matches is None and budget.offsets <= 0):
                break
            # Beyond the end of what a filter was asked about nothing may be passed over.
            stop = min(base + row.count, end)
            selected = _selected(base, row, message_filter, matches)
            if selected is None or selected:
                begin = max(base, head)
                if begin > passed_from:
                    columns.append(_nothing(passed_from, begin))
                columns.append(Columns(base, stop - base, selected, row.group_hashes, row.lengths))
                passed_from = stop
                wanted -= stop - begin if selected is None else len(selected)
            budget.offsets -= stop - at
            at = stop
        else:
            # Offsets that no run covers hold no message: it was taken back, or lost to a repair.
            at = end
        if at > passed_from:
            columns.append(_nothing(passed_from, at))
        return columns

    def likely(
        self,
        lease_set: LeaseSet,
        again: Sequence[int],
        end: int,
        message_filter: MessageFilter,
        wanted: int,
        budget: ScanBudget,
    ) -> list[Location]:
        """Return where the messages are that a pop may take next, up to `end`.

        Args:
            lease_set: of the pop.
            again: offsets below the head that come first.
            end: first offset that is of no interest.
            message_filter: what is ruled out by its tags is left out.
            wanted: how many.
            budget: what this may look at; nothing is taken off it.
        """
        _, topic_id, queue = lease_set.key
        head = lease_set.leases.head
        locations: list[Location] = []
        left_bytes = budget.message_bytes
        starts = [(offset, offset + 1, 1) for offset in again]
        looked_at_end = min(end, head + budget.offsets)
        for first, stop, count in (*starts, (head, looked_at_end, wanted)):
            for base, row in self._runs(lease_set.key, first, stop):
                for ordinal in _possible(row, message_filter):
                    offset = base + ordinal
                    if not first <= offset < stop or count <= 0 or left_bytes <= 0:
                        continue
                    location = Location(
                        row.raft_index, *row.location(ordinal), topic_id, queue, offset
                    )
                    locations.append(location)
                    count -= 1
                    left_bytes -= location.length
                if count <= 0 or left_bytes <= 0:
                    break
        return locations

    async def read_ahead(
        self,
        lease_set: LeaseSet,
        next_offset: int,
        message_filter: MessageFilter,
        wanted: int,
        budget: ScanBudget,
    ) -> int:
        """Learn which messages match, until so many do or the budget is spent.

        Returns:
            How many are known to match from the head on.

        Raises:
            Refused: too many reads are under way.
        """
        leases = lease_set.leases
        if not leases.wants_columns(next_offset)[1]:
            return 0
        while True:
            matches = lease_set.matches
            if matches is None or not matches.goes_on_from(message_filter, leases.head):
                matches = lease_set.matches = Matches(message_filter, leases.head)
            async with matches.reading:
                # Meanwhile another pop may have moved the head somewhere else.
                while matches.goes_on_from(message_filter, leases.head):
                    matches.forget_below(leases.head)
                    known = matches.count_from(leases.head)
                    if known >= wanted or matches.end >= next_offset or budget.spent:
                        lease_set.matches = matches
                        return known
                    await self._extend(lease_set.key, next_offset, matches, budget)

    async def _extend(
        self, key: ConsumerKey, next_offset: int, matches: Matches, budget: ScanBudget
    ) -> None:
        reading = self._choose(key, matches.end, next_offset, matches, budget)
        messages = await self._reader.read(reading.locations, key[0])
        matched: list[int] = []
        for offset, message in zip(reading.offsets, messages, strict=True):
            # A damaged one is not passed over: it may be repaired.
            is_wanted = message is None
            if message is not None:
                is_wanted, steps = await self._turns.do(matches.message_filter.work(message))
                matches.steps_per_message = steps
                budget.filter_steps -= steps
            if is_wanted:
                matched.append(offset)
            if budget.filter_steps <= 0:
                # The messages that were found so far may be given now.
                matches.extend(offset + 1, matched)
                return
        matches.extend(reading.end, matched)

    def _choose(
        self, key: ConsumerKey, first: int, end: int, matches: Matches, budget: ScanBudget
    ) -> _Reading:
        """Return the next messages to read; at least one if there is one."""
        offsets: list[int] = []
        locations: list[Location] = []
        # For a slow filter little is read ahead: the rest would be read for nothing.
        affordable = budget.filter_steps // max(matches.steps_per_message, 1)
        at_most = min(_READ_AT_ONCE, budget.messages, max(affordable, 1))
        at = first
        for base, row in self._runs(key, first, end):
            for ordinal in _possible(row, matches.message_filter):
                offset = base + ordinal
                if offset < first:
                    continue
                if len(offsets) == at_most or budget.message_bytes <= 0:
                    return _Reading(offsets, locations, offset)
                location = Location(row.raft_index, *row.location(ordinal), *key[1:], offset)
                offsets.append(offset)
                locations.append(location)
                budget.messages -= 1
                budget.message_bytes -= location.length
            budget.offsets -= base + row.count - max(at, base)
            at = base + row.count
            if budget.offsets <= 0:
                return _Reading(offsets, locations, at)
        return _Reading(offsets, locations, end)

    def _runs(self, key: ConsumerKey, first: int, end: int) -> Iterator[Run]:
        """Iterate runs that hold offsets first .. end - 1."""
        if first >= end:
            return
        _, topic_id, queue = key
        for run in self._machine.consume_queues.from_offset(topic_id, queue, first):
            if run[0] >= end:
                return
            yield run


def _selected(
    base: int, row: CqRow, message_filter: MessageFilter, matches: Matches | None
) -> Sequence[int] | None:
    """Return the ordinals of a run that the filter lets through; None: all."""
    if matches is not None:
        return matches.ordinals(base, row.count)
    if message_filter.tag_hashes is None:
        return None
    return _possible(row, message_filter)


def _possible(row: CqRow, message_filter: MessageFilter) -> Sequence[int]:
    """Return the ordinals of a run that the index does not rule out."""
    wanted = message_filter.tag_hashes
    if wanted is None:
        return range(row.count)
    return [ordinal for ordinal, tag in enumerate(row.tag_hashes) if tag in wanted]


def _nothing(first: int, end: int) -> Columns:
    """Return a run of offsets that are passed over."""
    return Columns(first, end - first, (), (), ())
