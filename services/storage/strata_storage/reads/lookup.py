"""Single messages by offset, id or key, without a lease. Reads applied rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata_mq.layout import (
    MessagePosition,
    PendingRef,
    PinState,
    day_of,
    pack_message_id,
    text_hash,
)
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

# Limit of one answer: many large messages may have the same key.
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message as it is stored."""

    queue: int
    offset: int
    store_time_ms: int
    message: bytes
    # Where only places are asked for, `message` is empty and this is how many bytes it has.
    length: int = 0


class Lookup:
    """Finds messages of one raft group."""

    def __init__(self, machine: GroupMachine, reader: MessageReader) -> None:
        self._machine = machine
        self._reader = reader

    async def by_id(self, topic_id: int, message_id: str) -> list[FoundMessage]:
        """Return the message with an id, newest first if it was stored several times.

        One that waits is not found: it is in no queue yet.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        ids = self._machine.rows.ids
        packed = pack_message_id(message_id)
        found: dict[tuple[int, int], None] = {}
        for day in self._days(ids.first_day()):
            position = ids.get(day, topic_id, packed)
            if isinstance(position, PendingRef):
                position = self._placed(topic_id, position)
            if position is not None:
                # Placed on another day than stored, it is found under both.
                found[position] = None
        return await self.at(topic_id, list(found))

    async def by_key(self, topic_id: int, key: str, max_messages: int) -> list[FoundMessage]:
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

    async def at(self, topic_id: int, positions: Sequence[tuple[int, int]]) -> list[FoundMessage]:
        """Return the messages at (queue, offset); those that are trimmed are left out.

        Messages after `_MAX_BYTES` are left out too, but one message always goes.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        places: list[tuple[int, int, int]] = []
        locations: list[Location] = []
        left_bytes = _MAX_BYTES
        for queue, offset in positions:
            row = self._machine.queues.get(topic_id, queue)
            if row is None or not row.min_offset <= offset < row.next_offset:
                continue
            run = self._machine.consume_queues.covering(topic_id, queue, offset)
            if run is None:
                continue
            base, cq_row = run
            location = Location(
                cq_row.raft_index, *cq_row.location(offset - base), topic_id, queue, offset
            )
            left_bytes -= location.length
            if places and left_bytes < 0:
                break
            places.append((queue, offset, cq_row.store_time_ms))
            locations.append(location)
        messages = []
        found = await self._reader.read(locations)
        for place, location, message in zip(places, locations, found, strict=True):
            if message is None:
                raise self._reader.refusal_of(location, f"offset {place[1]}")
            messages.append(FoundMessage(*place, message))
        return messages

    async def read(
        self, topic_id: int, queues: Sequence[int], offsets: Sequence[int]
    ) -> list[bytes]:
        """Return the messages at (queue, offset), in order; empty: it is not here, or damaged.

        Raises:
            Refused: too many reads wait.
        """
        messages = [b""] * len(offsets)
        wanted: list[int] = []
        locations: list[Location] = []
        for at, (queue, offset) in enumerate(zip(queues, offsets, strict=True)):
            run = self._machine.consume_queues.covering(topic_id, queue, offset)
            if run is not None:
                base, row = run
                wanted.append(at)
                place = row.location(offset - base)
                locations.append(Location(row.raft_index, *place, topic_id, queue, offset))
        for at, message in zip(wanted, await self._reader.read(locations), strict=True):
            messages[at] = message or b""
        return messages

    def _placed(self, topic_id: int, ref: PendingRef) -> MessagePosition | None:
        """Return where a message is that was stored to wait; None: it waits, or is gone."""
        pin = self._machine.rows.pins.get(ref)
        if pin is None or pin.state is not PinState.PLACED or pin.topic_id != topic_id:
            return None
        return MessagePosition(pin.queue, pin.offset)

    def _days(self, first_day: int | None) -> Sequence[int]:
        if first_day is None:
            return ()
        return range(day_of(self._machine.state.group_time_ms), first_day - 1, -1)
