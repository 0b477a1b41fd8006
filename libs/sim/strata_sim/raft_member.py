"""One `RawNode` with a disk that can forget: what a replica is made of in simulations.

Writes wait in `pending` until `sync`; a crash keeps a prefix of them or none. What a sync would
let go (messages, applied entries) is handed back to the caller, which is the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from strata_raft import (
    Compacted,
    Configuration,
    Effects,
    Entry,
    EntryKind,
    Event,
    HardState,
    MemoryLog,
    Message,
    Persisted,
    RaftOptions,
    RawNode,
    SnapshotInstalled,
    SnapshotMetadata,
    WriteFailed,
)
from strata_raft.membership import decode_configuration

Outgoing = list[Message]


class RaftMember:
    """One replica. Every method that may lead to messages returns those that may leave now."""

    def __init__(
        self,
        replica_id: int,
        configuration: Configuration,
        election_timeout_ticks: Callable[[], int],
        options: RaftOptions | None = None,
    ) -> None:
        self.replica_id = replica_id
        self.stored = MemoryLog()
        self.applied: list[Entry] = []
        self.pending: deque[Effects] = deque()
        self.last_effects: Effects | None = None
        self.is_up = True
        self._base = configuration
        self._hard_state = HardState()
        self._waiting: deque[Effects] = deque()
        self._synced_sequence = 0
        self._election_timeout_ticks = election_timeout_ticks
        self._options = options or RaftOptions()
        self.node = self._make_node()

    def step(self, event: Event) -> Outgoing:
        """Step one event."""
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
        effects = self.node.step(WriteFailed())
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
        self.node = self._make_node()

    def compact(self) -> None:
        """Replace the log up to the last applied entry by a snapshot."""
        index = self.applied[-1].index
        if index >= self.stored.first_index():
            snapshot = SnapshotMetadata(
                index, self.stored.term(index), self._configuration_at(index)
            )
            self._base = snapshot.configuration
            self.stored.compact(snapshot)

    def install(self, snapshot: SnapshotMetadata, leader_id: int, state: list[Entry]) -> Outgoing:
        """Take over a leader's applied entries, unless this replica is already further."""
        outgoing: Outgoing = []
        while self.pending:
            outgoing += self.sync()
        if not self.node.needs_snapshot(snapshot):
            return outgoing
        self.stored.install(snapshot)
        self._base = snapshot.configuration
        self.applied = state[: snapshot.index]
        return outgoing + self.step(SnapshotInstalled(snapshot, leader_id))

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
            self._base,
            election_timeout_ticks=self._election_timeout_ticks,
            hard_state=self._hard_state,
            configurations=configurations,
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
        if effects.ready_index >= first:
            self.applied += self.stored.entries(first, effects.ready_index, 1 << 40)
        return outgoing
