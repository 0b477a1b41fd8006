"""Messages by offset, id or key, without a lease. Reads applied rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.hashing import pack_message_id, text_hash
from strata_mq.rows import QueueRow, day_of
from strata_storage.errors import Refused
from strata_storage.machine import GroupMachine
from strata_storage.reader import Location, MessageReader

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as it is stored."""

    queue: int
    offset: int
    store_time_ms: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages of one queue from an offset on, and where the queue begins and ends."""

    messages: Sequence[Stored]
    min_offset: int
    next_offset: int


class Lookup:
    """Finds messages of one raft group."""

    def __init__(self, machine: GroupMachine, reader: MessageReader) -> None:
        self._machine = machine
        self._reader = reader

    async def fetch(
        self, topic_id: int, queue: int, offset: int, max_messages: int, max_bytes: int
    ) -> Fetched:
        """Return messages from `offset` (or the queue's start) on; at least one if there is one.

        Raises:
            Refused: OUTCOME_WRONG_GROUP, nothing was ever stored here for this queue;
                OUTCOME_CORRUPT, the first message cannot be read.
        """
        row = self._machine.queues.get(topic_id, queue) or _EMPTY_QUEUE
        first = max(offset, row.min_offset)
        count = min(max_messages, max(0, row.next_offset - first))
        queues = self._machine.consume_queues
        runs = queues.runs(topic_id, queue, first, count)
        if count and not runs:
            # A repair of the log gave up more messages than were asked for.
            following = queues.next_run(topic_id, queue, first)
            first = row.next_offset if following is None else following[0]
            count = min(max_messages, row.next_offset - first)
            runs = queues.runs(topic_id, queue, first, count)
        places: list[tuple[int, int]] = []
        locations: list[Location] = []
        taken_bytes = 0
        for base, cq_row in runs:
            for ordinal in range(max(first - base, 0), min(cq_row.count, first + count - base)):
                location = Location(cq_row.raft_index, *cq_row.location(ordinal))
                if places and taken_bytes + location.length > max_bytes:
                    break
                taken_bytes += location.length
                places.append((base + ordinal, cq_row.store_time_ms))
                locations.append(location)
            else:
                continue
            break
        messages = []
        for (at, store_time_ms), message in zip(
            places, await self._reader.read(locations), strict=True
        ):
            if message is None:
                break
            messages.append(Stored(queue, at, store_time_ms, message))
        if locations and not messages:
            raise Refused(
                pb.OUTCOME_CORRUPT, f"offset {places[0][0]} of queue {queue} is damaged on disk"
            )
        return Fetched(messages, row.min_offset, row.next_offset)

    async def by_id(self, topic_id: int, message_id: str) -> list[Stored]:
        """Return the message with an id, newest first if it was stored several times.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        ids = self._machine.rows.ids
        packed = pack_message_id(message_id)
        found = [
            position
            for day in self._days(ids.first_day())
            if (position := ids.get(day, topic_id, packed)) is not None
        ]
        return await self.at(topic_id, found)

    async def by_key(self, topic_id: int, key: str, max_messages: int) -> list[Stored]:
        """Return messages with a key, newest day first.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        keys = self._machine.rows.keys
        key_hash = text_hash(key)
        found: list[tuple[int, int]] = []
        for day in self._days(keys.first_day()):
            if len(found) >= max_messages:
                break
            found += keys.find(day, topic_id, key_hash, max_messages - len(found))
        return await self.at(topic_id, found)

    async def at(self, topic_id: int, positions: Sequence[tuple[int, int]]) -> list[Stored]:
        """Return the messages at (queue, offset); those that are trimmed are left out.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        places: list[tuple[int, int, int]] = []
        locations: list[Location] = []
        for queue, offset in positions:
            row = self._machine.queues.get(topic_id, queue)
            if row is None or not row.min_offset <= offset < row.next_offset:
                continue
            run = self._machine.consume_queues.covering(topic_id, queue, offset)
            if run is None:
                continue
            base, cq_row = run
            places.append((queue, offset, cq_row.store_time_ms))
            locations.append(Location(cq_row.raft_index, *cq_row.location(offset - base)))
        messages = []
        for place, message in zip(places, await self._reader.read(locations), strict=True):
            if message is None:
                raise Refused(pb.OUTCOME_CORRUPT, f"offset {place[1]} is damaged on disk")
            messages.append(Stored(*place, message))
        return messages

    def _days(self, first_day: int | None) -> Sequence[int]:
        if first_day is None:
            return ()
        return range(day_of(self._machine.state.group_time_ms), first_day - 1, -1)
