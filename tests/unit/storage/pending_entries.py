"""Entries about messages that wait, and a state machine over a store in memory to apply them."""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from strata_mq.commands.common import Duplicate, PartResolution, encode_append
from strata_mq.commands.pending import (
    ResolveCommand,
    ResolveItem,
    RetractCommand,
    StoredPosition,
    encode_resolve,
    encode_retract,
)
from strata_mq.commands.rare import (
    DropCommand,
    DropKind,
    LostCommand,
    TrimCommand,
    encode_drop,
    encode_lost,
    encode_trim,
)
from strata_mq.layout.batch import BatchBuilder, BatchView, OutgoingMessage, PartKey, PartKind
from strata_mq.layout.pending_rows import NO_QUEUE, PendingKey
from strata_mq.layout.rows import day_of
from strata_raft import Entry, EntryKind
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_storage.base.config import EngineOptions
from strata_storage.rows.machine import GroupMachine

GROUP = 3
TOPIC_ID = 7
DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS
TODAY = day_of(START_MS)


async def run_here(work: object) -> None:
    assert callable(work)
    work()


class Listener:
    """`AppliedListener` that keeps what it was told."""

    def __init__(self) -> None:
        self.pending: list[tuple[PendingKey, PartKind]] = []
        self.appended: list[tuple[int, int]] = []
        self.applied_index = 0

    def on_applied(self, index: int) -> None:
        self.applied_index = index

    def on_appended(self, topic_id: int, queue: int) -> None:
        self.appended.append((topic_id, queue))

    def on_pending(self, became: Sequence[tuple[PendingKey, PartKind]]) -> None:
        self.pending += became

    def on_trimmed(self, topic_id: int, queue: int, min_offset: int) -> None:
        """Not looked at."""

    def on_sealed(self, topic_id: int, queue: int) -> None:
        """Not looked at."""

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        """Not looked at."""


def machine_of(store: MemoryStore) -> GroupMachine:
    """Return a machine without a leader."""
    return GroupMachine(
        store,
        GROUP,
        Flusher(store, run_here),
        options=EngineOptions(
            queue_rows_max=1_000, cq_cache_bytes=100_000, broker_row_age_ms=DAY_MS
        ),
        on_leader=lambda term: None,
        on_follower=lambda term, leader: None,
    )


class Log:
    """Applies entries and keeps them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.machine = machine_of(self.store)
        self.listener = Listener()
        self.machine.listener = self.listener
        self.entries: list[Entry] = []
        self._unapplied: list[Entry] = []

    @property
    def next_index(self) -> int:
        """Index of the next entry."""
        return len(self.entries) + 1

    def add(self, *payload: bytes, apply: bool = True) -> int:
        """Append an entry, apply it and those before it in one go; return its index."""
        entry = Entry(1, self.next_index, EntryKind.NORMAL, payload)
        self.entries.append(entry)
        self._unapplied.append(entry)
        if apply:
            entries, self._unapplied = self._unapplied, []
            self.machine.apply(entries)
        return entry.index

    def append(
        self,
        *parts: tuple[PartKey, Sequence[OutgoingMessage]],
        now_ms: int = START_MS,
        duplicates: Sequence[Duplicate] = (),
        apply: bool = True,
    ) -> int:
        """Store parts; plain ones go to queue 0 behind what is there."""
        batch, resolutions = resolved(self.machine, parts, duplicates)
        head = encode_append(now_ms, 77, self.next_index, resolutions)
        return self.add(head, batch, apply=apply)

    def resolve(self, *items: ResolveItem, now_ms: int = START_MS, apply: bool = True) -> int:
        """Let messages wait no more."""
        return self.add(encode_resolve(ResolveCommand(now_ms, items)), apply=apply)

    def retract(self, *positions: tuple[int, int, int]) -> int:
        """Take stored messages back."""
        command = RetractCommand(START_MS, [StoredPosition(*each) for each in positions])
        return self.add(encode_retract(command))

    def trim(self, command: TrimCommand) -> int:
        """Trim."""
        return self.add(encode_trim(command))

    def drop_topic(self, topic_id: int = TOPIC_ID, *, apply: bool = True) -> int:
        """Drop a topic."""
        return self.add(encode_drop(DropCommand(DropKind.TOPIC, topic_id)), apply=apply)

    def lose(self, index: int, ordinals: Sequence[int] = ()) -> Log:
        """Return a log in which a repair put a LOST entry in the place of one, applied anew."""
        repaired = Log()
        for entry in self.entries:
            payload: tuple[bytes, ...] = entry.payload
            if entry.index == index:
                saved = payload if ordinals else ()
                payload = (encode_lost(LostCommand((), 0, frozenset(ordinals))), *saved)
                payload = (b"".join(payload),)
            repaired.add(*payload)
        return repaired


def resolved(
    machine: GroupMachine,
    parts: Sequence[tuple[PartKey, Sequence[OutgoingMessage]]],
    duplicates: Sequence[Duplicate] = (),
) -> tuple[bytes, list[PartResolution]]:
    """Return a batch and what a leader without anything in flight decides of it."""
    builder = BatchBuilder(google_crc32c.value)
    for key, messages in parts:
        builder.add(key, messages)
    batch = builder.build()
    resolutions = []
    for part in BatchView(batch, google_crc32c.value).parts:
        if part.key.kind:
            resolutions.append(
                PartResolution(NO_QUEUE, part.first, 1, tuple(duplicates), part.key.kind)
            )
        else:
            row = machine.queues.get(part.key.topic_id, 0)
            resolutions.append(PartResolution(0, row.next_offset if row else 0))
    return batch, resolutions


def part_key(kind: PartKind = PartKind.DELAYED, topic_id: int = TOPIC_ID) -> PartKey:
    """Return the key of a part whose queue is not chosen."""
    return PartKey(topic_id, -1, 5, 4, kind)


def message(number: int, due_ms: int = 0, *, keys: Sequence[int] = ()) -> OutgoingMessage:
    """Return a message that is told from others by its number."""
    body = b"message %d" % number
    identity = b"\x01" + number.to_bytes(16, "big")
    return OutgoingMessage(
        body, google_crc32c.value(body), number, number + 1, identity, 1, 0, keys, due_ms
    )
