"""Lists messages that wait, by due time, a page at a time. Reads applied rows only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strata_mq.layout import PartKind, PendingKey, PendingRef, PendingRow, PinState
from strata_storage.base.config import EngineOptions
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

# Rows looked at for one page, and before the event loop gets a turn.
_ROWS_PER_PAGE = 20_000
_ROWS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class PendingQuery:
    """A range to list.

    Attributes:
        kind: only this one; None: all.
        topic_id: only of this topic; 0: of all.
        after: the last one seen; None: from the start.
        max_messages: of the page; 0: as many as it may have.
        with_messages: also the messages themselves.
    """

    kind: PartKind | None = None
    topic_id: int = 0
    after: PendingKey | None = None
    max_messages: int = 0
    with_messages: bool = False

    def wants(self, row: PendingRow) -> bool:
        """Whether a message is to be listed."""
        return self.kind in (None, row.kind) and self.topic_id in (0, row.topic_id)


class PendingMessage(NamedTuple):
    """A message that waits; its bytes only if they were asked for."""

    key: PendingKey
    row: PendingRow
    message: bytes = b""


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Messages by due time, and behind which the next page begins; None: that was all."""

    messages: Sequence[PendingMessage]
    next_after: PendingKey | None


class PendingList:
    """Lists of one raft group, on any replica."""

    def __init__(
        self, machine: GroupMachine, reader: MessageReader, options: EngineOptions
    ) -> None:
        self._machine = machine
        self._reader = reader
        self._options = options

    async def page(self, query: PendingQuery) -> PendingPage:
        """Return the next messages; fewer than wanted, or none, if many others lie between.

        Raises:
            Refused: OUTCOME_CORRUPT, a message cannot be read.
        """
        limit = self._options.pop_max_messages
        limit = min(query.max_messages or limit, limit)
        found: list[PendingMessage] = []
        size_bytes = 0
        last = query.after or PendingKey(0, 0, 0)
        begin = last if query.after is None else last.following()
        # Nothing waits below the bound, only tombstones lie there (rule 27).
        begin = max(begin, self._machine.pending_bound)
        for number, (key, row) in enumerate(self._machine.rows.pending.scan(begin), 1):
            if query.wants(row):
                size_bytes += row.length if query.with_messages else 0
                if found and size_bytes > self._options.pop_max_bytes:
                    break
                found.append(PendingMessage(key, row))
            last = key
            if len(found) == limit or number == _ROWS_PER_PAGE:
                break
            if number % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        else:
            return PendingPage(await self._filled(query, found), None)
        return PendingPage(await self._filled(query, found), last)

    async def one(self, query: PendingQuery, ref: PendingRef) -> PendingPage:
        """Return one message as a page, an empty one if it waits no more.

        Raises:
            Refused: OUTCOME_CORRUPT, it cannot be read.
        """
        pin = self._machine.rows.pins.get(ref)
        found: list[PendingMessage] = []
        if pin is not None and pin.state is PinState.PENDING:
            key = PendingKey(pin.due_ms, *ref)
            row = self._machine.rows.pending.get(key)
            if row is not None and query.wants(row):
                found.append(PendingMessage(key, row))
        return PendingPage(await self._filled(query, found), None)

    async def _filled(
        self, query: PendingQuery, found: Sequence[PendingMessage]
    ) -> Sequence[PendingMessage]:
        if not query.with_messages or not found:
            return found
        locations = [
            Location(key.raft_index, row.message_at, row.length, row.checksum)
            for key, row, _ in found
        ]
        messages = await self._reader.read(locations)
        filled = []
        for each, location, message in zip(found, locations, messages, strict=True):
            if message is None:
                raise self._reader.refusal_of(location, f"entry {each.key.raft_index}")
            filled.append(each._replace(message=message))
        return filled
