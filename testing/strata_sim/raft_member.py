"""One `RawNode` with a disk that can forget: a replica in simulations.

Writes wait in `pending` until `sync`; a crash keeps a prefix of them or none. Effects that a sync
releases (messages, applied entries) are returned to the caller, which is the network.

A snapshot is installed in two steps, as on a real disk: from `begin_install` on entries and rows
are void, and a crash before `finish_install` leaves an empty replica with its term, vote and floor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from strata_raft import (
    Compacted,
    Configuration,
    Effects,
    Entry,
    EntryKind,
    Event,
    HardState,
    LogWriteFailed,
    MemoryLog,
    Message,
    Persisted,
    RaftOptions,
    RawNode,
    Receive,
    SnapshotInstalled,
    SnapshotMetadata,
)
from strata_raft.membership import Membership, decode_configuration
from strata_raft.messages import AppendRequest, TimeoutNow

Outgoing = list[Message]

OnStored = Callable[[int, int, Sequence[Entry]], None]
"""Told of a replica id, the term of the entry before, and entries that are durable there."""


def _nothing(replica_id: int, previous_term: int, entries: Sequence[Entry]) -> None:
    """Take no note."""


class RaftMember:
    """One replica. Every method that may lead to messages returns those that may leave now."""

    def __init__(
        self,
        replica_id: int,
        configuration: Configuration,
        election_timeout_ticks: Callable[[], int],
        *,
        options: RaftOptions | None = None,
        on_stored: OnStored = _nothing,
    ) -> None:
        self.replica_id = replica_id
        self._on_stored = on_stored
        self.stored = MemoryLog()
        self.applied: list[Entry] = []
        self.pending: deque[Effects] = deque()
        self.last_effects: Effects | None = None
        self.is_up = True
        # The snapshot that is being written over entries and rows; this outlives a crash.
        self.installing: SnapshotMetadata | None = None
        self._initial = self._base = configuration
        self._floor = (0, 0)
        self._hard_state = HardState()
        self._waiting: deque[Effects] = deque()
        self._synced_sequence = 0
        self._election_timeout_ticks = election_timeout_ticks
        self._options = options or RaftOptions()
        self.node = self._make_node()

    def step(self, event: Event) -> Outgoing:
        """Step one event; while a snapshot is installed no entry is taken."""
        if (
            self.installing is not None
            and isinstance(event, Receive)
            and isinstance(event.message, (AppendRequest, TimeoutNow))
        ):
            return []
        return self._do(self.node.step(event))

    def tick(self) -> Outgoing:
        """Let one tick pass."""
        return self._do(self.node.tick())

    def sync(self) -> Outgoing:
        """Make the oldest pending write durable and report it."""
        effects = self.pending.popleft()
        self._store(effects)
        self._synced_sequence = effects.sequence
        outgoing: Outgoing = []
        while self._waiting and self._waiting[0].sequence <= self._synced_sequence:
            outgoing += self._waiting.popleft().messages_after_sync
        return outgoing + self.step(Persisted(effects.sequence))

    def lose_writes(self) -> Outgoing:
        """Let the disk be full: nothing pending is stored, the replica knows and stays up."""
        self.pending.clear()
        self._waiting.clear()
        effects = self.node.step(LogWriteFailed())
        self._synced_sequence = effects.sequence - effects.must_sync()
        return self._do(effects)

    def crash(self, surviving_writes: int = 0) -> None:
        """Stop; of the pending writes that many reached the disk although nobody was told."""
        for _ in range(min(surviving_writes, len(self.pending))):
            self._store(self.pending.popleft())
        self.is_up = False

    def restart(self) -> None:
        """Start again from what is durable; the state machine keeps what it applied."""
        self.pending.clear()
        self._waiting.clear()
        self._synced_sequence = 0
        self.is_up = True
        if self.installing is not None:
            self._void()
        self.node = self._make_node()
        self._note_applied()

    def compact(self) -> None:
        """Replace the log up to the last applied entry by a snapshot."""
        index = self.applied[-1].index
        if index >= self.stored.first_index():
            snapshot = SnapshotMetadata(
                index, self.stored.term(index), self._configuration_at(index)
            )
            self._base = snapshot.configuration
            self.stored.compact(snapshot)

    def begin_install(self, snapshot: SnapshotMetadata) -> Outgoing:
        """Void what is here, unless this replica is already further than the snapshot."""
        outgoing: Outgoing = []
        while self.pending:
            outgoing += self.sync()
        if self.node.needs_snapshot(snapshot):
            self.installing = snapshot
            self._floor = max(self._floor, (snapshot.term, snapshot.index))
        return outgoing

    def finish_install(self, leader_id: int, state: list[Entry]) -> Outgoing:
        """Take over a leader's applied entries and go on after them."""
        outgoing: Outgoing = []
        while self.pending:
            outgoing += self.sync()
        snapshot, self.installing = self.installing, None
        assert snapshot is not None
        assert self.node.needs_snapshot(snapshot), "it took entries while it was being installed"
        self.stored.install(snapshot)
        self._base = snapshot.configuration
        self.applied = state[: snapshot.index]
        return outgoing + self.step(SnapshotInstalled(snapshot, leader_id))

    def abandon_install(self) -> None:
        """Give a snapshot up half-way: go on as an empty replica with the same term and vote."""
        while self.pending:
            self._store(self.pending.popleft())
        self.restart()

    def is_term_durable(self) -> bool:
        """Tell whether a crash would not take back the term, and so the vote in it."""
        return self._hard_state.term == self.node.term

    def entry_at(self, index: int) -> Entry | None:
        """Return an entry of the whole log, pending writes included; None: there is none."""
        for effects in reversed(self.pending):
            if effects.entries and effects.entries[0].index <= index:
                position = index - effects.entries[0].index
                return effects.entries[position] if position < len(effects.entries) else None
        if not self.stored.first_index() <= index <= self.stored.last_index():
            return None
        return self.stored.entries(index, index, 1)[0]

    def term_at(self, index: int) -> int | None:
        """Return the term at an index of the whole log; 0: no entry, None: compacted."""
        entry = self.entry_at(index)
        if entry is not None:
            return entry.term
        try:
            return self.stored.term(index) if index < self.stored.first_index() else 0
        except Compacted:
            return None

    def _void(self) -> None:
        self.installing = None
        self.stored = MemoryLog()
        self.applied = []
        self._base = self._initial

    def _make_node(self) -> RawNode:
        stored = self.stored.entries(self.stored.first_index(), self.stored.last_index(), 1 << 40)
        configurations = [
            (entry.index, decode_configuration(entry.payload))
            for entry in stored
            if entry.kind is EntryKind.CONFIGURATION
        ]
        return RawNode(
            self.replica_id,
            self.stored,
            Membership(self._base, configurations),
            election_timeout_ticks=self._election_timeout_ticks,
            hard_state=self._hard_state,
            floor=self._floor,
            options=self._options,
        )

    def _configuration_at(self, index: int) -> Configuration:
        configuration = self._base
        for entry in self.stored.entries(self.stored.first_index(), index, 1 << 40):
            if entry.kind is EntryKind.CONFIGURATION:
                configuration = decode_configuration(entry.payload)
        return configuration

    def _store(self, effects: Effects) -> None:
        if effects.hard_state is not None:
            self._hard_state = effects.hard_state
        if effects.entries:
            first = effects.entries[0].index
            self._on_stored(self.replica_id, self.stored.term(first - 1), effects.entries)
        self.stored.write(effects.entries)

    def _do(self, effects: Effects) -> Outgoing:
        self.last_effects = effects
        outgoing = list(effects.messages)
        if effects.must_sync():
            self.pending.append(effects)
        if effects.messages_after_sync:
            if effects.sequence <= self._synced_sequence:
                outgoing += effects.messages_after_sync
            else:
                self._waiting.append(effects)
        first = self.applied[-1].index + 1 if self.applied else 1
        if self.installing is None and effects.ready_index >= first:
            self.applied += self.stored.entries(first, effects.ready_index, 1 << 40)
        self._note_applied()
        return outgoing

    def _note_applied(self) -> None:
        """Tell the core; whoever has applied less than is committed is to be refused at once."""
        self.node.note_applied(self.applied[-1].index if self.applied else 0)
        self.node.note_due(self.node.commit_index)
