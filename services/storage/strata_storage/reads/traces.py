"""The history of single messages: reads trace rows beside the message itself.

Rows record every delivery, ack and release as long as messages of their day are kept (ADR 0020). A
message that a filter passed over, or that a consumer group skipped by a reset, has no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata_mq.layout import day_of
from strata_mq.traces import TraceEvent, trace_events
from strata_storage.reads.lookup import FoundMessage, Lookup
from strata_storage.rows.machine import GroupMachine

# Rows of a message's block of 256 offsets: more only where messages are delivered over and over.
_MAX_ROWS_PER_DAY = 50_000


class NamedEvent(NamedTuple):
    """An event and the name of its holder, "" if it is not known."""

    event: TraceEvent
    client_id: str


class MessageTrace(NamedTuple):
    """A message and what happened to it, oldest first.

    Attributes:
        raft_index: of the entry that stored it.
        truncated: there are more events than were asked for.
    """

    stored: FoundMessage
    raft_index: int
    events: Sequence[NamedEvent]
    truncated: bool


class Traces:
    """Traces of one raft group, on any replica."""

    def __init__(self, machine: GroupMachine, lookup: Lookup) -> None:
        self._machine = machine
        self._lookup = lookup

    async def by_id(self, topic_id: int, message_id: str, max_events: int) -> list[MessageTrace]:
        """Return the traces of the messages with an id, newest message first.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        found = await self._lookup.by_id(topic_id, message_id)
        return [self._trace(topic_id, stored, max_events) for stored in found]

    async def at(
        self, topic_id: int, queue: int, offset: int, max_events: int
    ) -> list[MessageTrace]:
        """Return the trace of the message at an offset; empty: there is none.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        found = await self._lookup.at(topic_id, ((queue, offset),))
        return [self._trace(topic_id, stored, max_events) for stored in found]

    def _trace(self, topic_id: int, stored: FoundMessage, max_events: int) -> MessageTrace:
        run = self._machine.consume_queues.covering(topic_id, stored.queue, stored.offset)
        raft_index = 0 if run is None else run[1].raft_index
        events: list[NamedEvent] = []
        rows = self._machine.rows.traces
        last_day = day_of(self._machine.state.group_time_ms)
        for day in range(day_of(stored.store_time_ms), last_day + 1):
            for value in rows.of_message(
                day, topic_id, stored.queue, stored.offset, _MAX_ROWS_PER_DAY
            ):
                for event in trace_events(value, stored.offset):
                    if len(events) >= max_events:
                        return MessageTrace(stored, raft_index, events, truncated=True)
                    events.append(NamedEvent(event, self._client_id(day, event.holder)))
        return MessageTrace(stored, raft_index, events, truncated=False)

    def _client_id(self, day: int, holder: int) -> str:
        """Return the name of a holder; it may have been written just before or after midnight."""
        names = self._machine.rows.client_names
        for near in (day, day + 1, day - 1):
            if holder and (found := names.get(near, holder)) is not None:
                return found
        return ""
