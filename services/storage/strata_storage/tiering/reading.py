"""Messages from the log or from the tier, as their topic's `tiered_storage_level` says.

At every level, a message that one side lacks, or cannot return, comes from the other; a message
that only the tier has and that cannot be read now is a refusal, never a missing message. Bytes from
the tier are compared with the checksum in the consume queue row, as those from the log are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import OutgoingMessage, type_and_born_ms
from strata_mq.tier_policy import TierLevel
from strata_storage.base.errors import Refused
from strata_storage.reads.reader import (
    Location,
    MessageReader,
    OnFailed,
    PayloadLog,
    RunRead,
)
from strata_storage.rows.tier_state import TierState
from strata_storage.tiering.parts import TieringParts
from strata_tier.base import TierError
from strata_tier.objects import BlockColumns
from strata_tier.ranges import TierMetadata
from strata_tier.reads import TierRead
from strata_tier.store import StoreError


class TierMessages(Protocol):
    """Reads messages of queues from objects; shared by all raft groups of a node."""

    async def messages(self, metadata: TierMetadata, read: TierRead) -> list[bytes]:
        """Return messages of one queue by rising offsets (`strata_tier.reads.reader.TierReader`).

        Raises:
            StoreError: the store cannot give the bytes.
            TierError: they are not what was committed, or the tier does not have an offset.
        """

    async def columns(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> BlockColumns:
        """Return the columns of the block that holds an offset; raises likewise."""


class TieredReader(MessageReader):
    """Reads messages of one replica; `bind` must be called before the first read.

    Args:
        log, replica_id, run_read, on_corrupt, on_failed: see `MessageReader`.
        parts: of tiering; None: no tier is configured here.
        messages: reads from objects; None likewise.
    """

    __slots__ = ("_messages", "_parts", "_state")

    def __init__(
        self,
        log: PayloadLog,
        replica_id: int,
        run_read: RunRead,
        *,
        on_corrupt: Callable[[int], None],
        on_failed: OnFailed = lambda raft_index, reason: None,
        parts: TieringParts | None = None,
        messages: TierMessages | None = None,
    ) -> None:
        super().__init__(log, replica_id, run_read, on_corrupt=on_corrupt, on_failed=on_failed)
        self._parts = parts
        self._messages = messages
        self._state: TierState | None = None

    def bind(self, state: TierState) -> None:
        """Take what the raft group has in the tier."""
        self._state = state

    async def read(
        self, locations: Sequence[Location], consumer_group: int = 0
    ) -> list[bytes | None]:
        """Return the messages' bytes in order; None where they are damaged or gone.

        Raises:
            Refused: OUTCOME_OVERLOADED, too many reads wait, or the tier cannot be read now.
        """
        state = self._state
        if state is None or not state.is_used:
            return await super().read(locations)
        found: list[bytes | None] = [None] * len(locations)
        first = self._preferred(state, locations)
        with suppress(Refused):
            # Else the log may have them still.
            await self._fill(found, locations, first, consumer_group)
        rest = [at for at, message in enumerate(found) if message is None]
        if rest:
            local = await self._read_log([locations[at] for at in rest])
            for at, message in zip(rest, local, strict=True):
                found[at] = message
            self._note_fallback(first, rest, found)
            missing = [at for at in rest if found[at] is None and _may_hold(state, locations[at])]
            await self._fill(found, locations, missing, consumer_group)
        if None in found:
            self._report(locations, found)
        return found

    async def warm(self, locations: Sequence[Location], consumer_group: int = 0) -> None:
        """Fetch messages that the tier alone has before anything is decided on them.

        Raises:
            Refused: OUTCOME_OVERLOADED, the tier cannot be read now.
        """
        state = self._state
        assert state is not None, "the reader is not bound"
        found: list[bytes | None] = list(await self._read_log(locations))
        missing = [at for at, message in enumerate(found) if message is None]
        await self._fill(found, locations, missing, consumer_group)

    async def outgoing(self, location: Location) -> OutgoingMessage:
        """Return a message of the tier, to be stored once more.

        Raises:
            Refused: OUTCOME_CORRUPT, it is not what was stored; OUTCOME_OVERLOADED, the tier
                cannot be read now.
        """
        key = location.topic_id, location.queue
        (stored,) = await self._from_tier(0, key, [location.offset])
        if google_crc32c.value(stored) != location.checksum:
            raise Refused(pb.OUTCOME_CORRUPT, f"offset {location.offset} is damaged in the tier")
        assert self._state is not None and self._messages is not None, "it was read just now"
        try:
            columns = await self._messages.columns(self._state.metadata, *key, location.offset)
            message_type, born_ms = type_and_born_ms(stored)
        except (StoreError, TierError) as error:
            raise Refused(pb.OUTCOME_OVERLOADED, f"the tier cannot be read: {error}") from error
        except ValueError:
            # Stored by something that writes no such properties.
            message_type = born_ms = 0
        ordinal = columns.ordinal_at(location.offset)
        terms = columns.terms.part(ordinal, ordinal + 1)
        return OutgoingMessage(
            stored,
            location.checksum,
            columns.tag_hashes[ordinal],
            columns.group_hashes[ordinal],
            terms.ids,
            message_type,
            born_ms,
            list(terms.key_hashes),
        )

    def _preferred(self, state: TierState, locations: Sequence[Location]) -> list[int]:
        """Return which messages are read from the tier although the log may have them."""
        if self._parts is None:
            return []
        chosen: list[int] = []
        # (topic, queue) -> (level, offset up to which the tier has it); 0: the log comes first.
        known: dict[tuple[int, int], tuple[TierLevel | None, int]] = {}
        for at, location in enumerate(locations):
            key = location.topic_id, location.queue
            if key not in known:
                level = self._parts.topics.level(location.topic_id)
                first = level in (TierLevel.FORCE, TierLevel.NOT_IN_MEM)
                known[key] = level, (state.commit_offset(*key) or 0) if first else 0
            level, committed = known[key]
            if not 0 <= location.offset < committed:
                continue
            if level is TierLevel.NOT_IN_MEM and self._is_recent(location):
                continue
            chosen.append(at)
        return chosen

    def _note_fallback(
        self, first: Sequence[int], rest: Sequence[int], found: Sequence[bytes | None]
    ) -> None:
        """Count a read if the log gave what was asked of the tier first."""
        if self._parts is not None and first:
            asked = set(first)
            if any(at in asked and found[at] is not None for at in rest):
                self._parts.work.instruments.fallbacks.add(1)

    def _is_recent(self, location: Location) -> bool:
        return self._recent(location.raft_index) is not None

    async def _fill(
        self,
        found: list[bytes | None],
        locations: Sequence[Location],
        places: Sequence[int],
        consumer_group: int,
    ) -> None:
        """Read some of the messages from the tier; those that are not what was stored stay None.

        Raises:
            Refused: the tier cannot be read now.
        """
        by_queue: dict[tuple[int, int], list[int]] = {}
        for at in places:
            location = locations[at]
            by_queue.setdefault((location.topic_id, location.queue), []).append(at)
        for key, of_queue in by_queue.items():
            of_queue.sort(key=lambda at: locations[at].offset)
            offsets = [locations[at].offset for at in of_queue]
            for at, message in zip(
                of_queue, await self._from_tier(consumer_group, key, offsets), strict=True
            ):
                if google_crc32c.value(message) == locations[at].checksum:
                    found[at] = message

    async def _from_tier(
        self, consumer_group: int, queue: tuple[int, int], offsets: Sequence[int]
    ) -> list[bytes]:
        state, parts, messages = self._state, self._parts, self._messages
        assert state is not None, "the reader is not bound"
        if parts is None or messages is None:
            raise Refused(
                pb.OUTCOME_OVERLOADED,
                f"offset {offsets[0]} of topic {queue[0]} queue {queue[1]} is only in the tier, "
                "and this node has no tier: start it with --tier",
            )
        is_scan = consumer_group > 0 or len(offsets) > 1
        wanted = TierRead(*queue, offsets, consumer_group, is_scan)
        try:
            read = await messages.messages(state.metadata, wanted)
        except (StoreError, TierError) as error:
            parts.work.instruments.failures.add(1, {"work": "read"})
            raise Refused(
                pb.OUTCOME_OVERLOADED,
                f"offset {offsets[0]} of topic {queue[0]} queue {queue[1]} cannot be read from "
                f"the tier now: {error}",
            ) from error
        parts.work.instruments.read_bytes.add(sum(map(len, read)))
        return read


def _may_hold(state: TierState, location: Location) -> bool:
    """Whether the tier has a message."""
    committed = state.commit_offset(location.topic_id, location.queue)
    return committed is not None and 0 <= location.offset < committed
