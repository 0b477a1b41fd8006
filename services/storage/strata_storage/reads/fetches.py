"""Messages of a queue from an offset on, without a lease: for pull consumers and operators.

Reads applied rows only and keeps no state of its readers. Messages that a filter rejects by the
index are not read from the log; messages that it must read count towards the answer's limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata_mq.filters import EVERYTHING, MessageFilter
from strata_mq.layout import QueueRow
from strata_runtime.turns import Turns
from strata_storage.reads.lookup import FoundMessage
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.consume_queues import Run
from strata_storage.rows.machine import GroupMachine

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
# Offsets that one fetch with a filter looks at: some milliseconds.
_MAX_SCANNED = 16_384


class FetchCall(NamedTuple):
    """A range to read.

    Attributes:
        offset: where to begin; before the queue's first one: there.
        max_messages, max_bytes: of the answer; one message always goes.
        wanted: filter of messages.
        places_only: tell which messages, without their bytes.
    """

    topic_id: int
    queue: int
    offset: int
    max_messages: int
    max_bytes: int
    wanted: MessageFilter = EVERYTHING
    places_only: bool = False


class Fetched(NamedTuple):
    """Messages of a queue.

    Attributes:
        messages: in order.
        min_offset, next_offset: where the queue begins, and the first offset without a message.
        resume_offset: where the next fetch goes on, behind what was given or passed over.
        limited: its filter had cost what one fetch may, and there was more to look at.
    """

    messages: Sequence[FoundMessage]
    min_offset: int
    next_offset: int
    resume_offset: int
    limited: bool = False


class _Chosen(NamedTuple):
    """(offset, store time) and location of each message to read, and where to go on."""

    places: list[tuple[int, int]]
    locations: list[Location]
    resume_offset: int


class Fetches:
    """Serves fetches of one raft group, on any replica."""

    def __init__(
        self, machine: GroupMachine, reader: MessageReader, turns: Turns, *, max_filter_steps: int
    ) -> None:
        self._machine = machine
        self._reader = reader
        self._turns = turns
        self._max_filter_steps = max_filter_steps

    def end_of(self, topic_id: int, queue: int) -> int:
        """Return the first offset of a queue that holds no message yet."""
        return (self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE).next_offset

    async def fetch(self, call: FetchCall) -> Fetched:
        """Return messages from `call.offset` on; at least one if there is one.

        A filter that has cost what one fetch may ends it where it is.

        Raises:
            Refused: OUTCOME_CORRUPT, the first message is damaged; OUTCOME_OVERLOADED, the disk
                could not read it now (rule 40).
        """
        row = self._machine.queues.get(call.topic_id, call.queue) or _EMPTY_QUEUE
        places, locations, resume_offset = self._choose(call, row)
        wanted = call.wanted
        if call.places_only and wanted is EVERYTHING:
            messages = [
                FoundMessage(call.queue, *place, b"", location.length)
                for place, location in zip(places, locations, strict=True)
            ]
            return Fetched(messages, row.min_offset, row.next_offset, resume_offset)
        messages, limited = [], False
        steps_left = self._max_filter_steps
        found = await self._reader.read(locations)
        for (offset, store_time_ms), message in zip(places, found, strict=True):
            if message is None:
                # The next fetch begins with it and says so.
                resume_offset = offset
                break
            if wanted.needs_messages:
                is_wanted, steps = await self._turns.do(wanted.work(message))
                steps_left -= steps
            else:
                is_wanted = wanted.matches(message)
            if is_wanted:
                kept = b"" if call.places_only else message
                messages.append(FoundMessage(call.queue, offset, store_time_ms, kept, len(message)))
            if steps_left <= 0:
                # The next fetch goes on behind it.
                limited = offset + 1 < resume_offset
                resume_offset = offset + 1
                break
        if found and found[0] is None:
            what = f"offset {places[0][0]} of queue {call.queue}"
            raise self._reader.refusal_of(locations[0], what)
        return Fetched(messages, row.min_offset, row.next_offset, resume_offset, limited)

    def _choose(self, call: FetchCall, row: QueueRow) -> _Chosen:
        first = max(call.offset, row.min_offset)
        hashes = call.wanted.tag_hashes
        scanned = call.max_messages if hashes is None else _MAX_SCANNED
        first, end, runs = self._runs(call, first, scanned, row.next_offset)
        places: list[tuple[int, int]] = []
        locations: list[Location] = []
        taken_bytes = 0
        for base, cq_row in runs:
            ordinals: Sequence[int] = range(max(first - base, 0), min(cq_row.count, end - base))
            if hashes is not None:
                of_row = cq_row.tag_hashes
                ordinals = [ordinal for ordinal in ordinals if of_row[ordinal] in hashes]
            for ordinal in ordinals:
                location = Location(
                    cq_row.raft_index,
                    *cq_row.location(ordinal),
                    call.topic_id,
                    call.queue,
                    base + ordinal,
                )
                full = len(places) >= call.max_messages
                if full or (places and taken_bytes + location.length > call.max_bytes):
                    return _Chosen(places, locations, base + ordinal)
                taken_bytes += location.length
                places.append((base + ordinal, cq_row.store_time_ms))
                locations.append(location)
        return _Chosen(places, locations, max(call.offset, end))

    def _runs(
        self, call: FetchCall, first: int, count: int, next_offset: int
    ) -> tuple[int, int, Sequence[Run]]:
        """Return (first offset, end, runs) of what to look at."""
        queues = self._machine.consume_queues
        end = max(first, min(first + count, next_offset))
        runs = queues.runs(call.topic_id, call.queue, first, end - first)
        if first < end and not runs:
            # A repair of the log gave up more messages than were asked for.
            following = queues.next_run(call.topic_id, call.queue, first)
            first = next_offset if following is None else following[0]
            end = max(first, min(first + count, next_offset))
            runs = queues.runs(call.topic_id, call.queue, first, end - first)
        return first, end, runs
