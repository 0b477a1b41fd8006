"""The state machine of the metadata raft group: writes what the leader decided, blindly (rule 1).

Invariants: the applied row stands in the same write batch as the rows it counts; revisions grow
by one per command; a command that does not follow the applied revision stops apply. Watchers are
told after the rows are in the store, so a watcher never knows more than a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.meta.v1 import command_pb2
from strata_nameserver.config import NameserverConfig
from strata_nameserver.draft import SpeculativeState, applied_state
from strata_nameserver.errors import RevisionMismatch
from strata_nameserver.rows import key_of, value_of
from strata_nameserver.watch import Revision, WatchHub
from strata_raft.types import Entry, EntryKind
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import APPLIED_KEY, change_key


class MetadataMachine:
    """Implements `strata_multiraft.ports.StateMachine` over a metadata store.

    Args:
        store: the rows.
        hub: told every applied revision.
        config: how many revisions a watcher may be behind.
        metrics: revision and rows.

    Attributes:
        speculative: what the leader decides on; meaningless while another one leads.
        leading: set while this replica is the ready leader.
    """

    def __init__(
        self, store: MetadataStore, hub: WatchHub, config: NameserverConfig, metrics: Metrics
    ) -> None:
        self._store = store
        self._hub = hub
        self._kept_revisions = config.watch_kept_revisions
        self._applied = applied_state(store)
        store.sync()
        self._persisted_index = self._applied.index
        self.speculative = SpeculativeState(store)
        self.leading = asyncio.Event()
        self._changes_total = metrics.counter("strata_metadata_changes_total")
        metrics.gauge("strata_metadata_revision", lambda: self.revision)
        metrics.gauge(
            "strata_metadata_changes_in_flight", lambda: self.speculative.changes_in_flight
        )
        metrics.gauge("strata_metadata_rows", self._row_counts)
        limits = {
            "topic": config.max_topics,
            "consumer_group": config.max_consumer_groups,
            "node": config.max_nodes,
            "tombstone": config.max_tombstones,
        }
        metrics.gauge(
            "strata_metadata_rows_maximum",
            lambda: [(maximum, {"kind": kind}) for kind, maximum in limits.items()],
        )

    @property
    def revision(self) -> int:
        """Revision of the applied rows."""
        return self._applied.counters.revision

    def applied_index(self) -> int:
        """Return the index of the last entry whose rows are in the store (0: none)."""
        return self._applied.index

    def persisted_index(self) -> int:
        """Return the applied index that survives a power failure (rule 6)."""
        return self._persisted_index

    def sync(self) -> None:
        """Make what is applied now survive a power failure. Blocks: runs in a thread."""
        index = self._applied.index
        self._store.sync()
        self._persisted_index = index

    def apply(self, entries: Sequence[Entry]) -> None:
        """Write the rows of committed entries in one batch, then tell watchers.

        Raises:
            RevisionMismatch: a command does not follow the applied revision.
        """
        rows: dict[bytes, bytes | None] = {}
        revisions: list[Revision] = []
        counters = self._applied.counters
        for entry in entries:
            if entry.kind is not EntryKind.NORMAL:
                continue
            command = command_pb2.Command.FromString(b"".join(entry.payload))
            if command.counters.revision != counters.revision + 1:
                raise RevisionMismatch(
                    f"entry {entry.index} brings revision {command.counters.revision}, "
                    f"revision {counters.revision} is applied"
                )
            counters = command.counters
            keys = [key_of(change) for change in command.changes]
            rows.update(zip(keys, map(value_of, command.changes), strict=True))
            rows[change_key(counters.revision)] = command_pb2.ChangedKeys(
                keys=keys
            ).SerializeToString()
            if counters.revision > self._kept_revisions:
                rows[change_key(counters.revision - self._kept_revisions)] = None
            revisions.append(Revision(counters.revision, tuple(command.changes)))
        last = entries[-1]
        applied = command_pb2.AppliedState(index=last.index, term=last.term, counters=counters)
        rows[APPLIED_KEY] = applied.SerializeToString()
        self._store.write(
            [(key, value) for key, value in rows.items() if value is not None],
            [key for key, value in rows.items() if value is None],
        )
        self._applied = applied
        for revision in revisions:
            self.speculative.applied(revision.number)
        self._changes_total.add(len(revisions))
        self._hub.publish(revisions)

    def on_leader(self, term: int) -> None:
        """Start deciding from the applied rows."""
        self.speculative.reset()
        self.leading.set()

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """Drop what was in flight."""
        self.leading.clear()
        self.speculative.reset()

    def _row_counts(self) -> list[tuple[float, dict[str, str]]]:
        counters = self._applied.counters
        return [
            (counters.topic_count, {"kind": "topic"}),
            (counters.consumer_group_count, {"kind": "consumer_group"}),
            (counters.node_count, {"kind": "node"}),
            (counters.tombstone_count, {"kind": "tombstone"}),
        ]
