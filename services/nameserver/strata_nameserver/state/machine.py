"""The state machine of the metadata raft group: writes what the leader decided, blindly (rule 1).

Invariants: the applied row stands in the same write batch as the rows it counts; revisions grow
by one per command; a command that does not follow the applied revision stops apply. Watchers are
told after the rows are in the store, so a watcher never knows more than a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.rows import key_of, value_of
from strata_metadata.watch import NOT_WHOLE, Revision, WatchHub
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import RevisionMismatch
from strata_nameserver.state.answers import MAX_ANSWERS
from strata_nameserver.state.draft import SpeculativeState, applied_state
from strata_raft import Configuration, Entry, EntryKind, Payload
from strata_raft.membership import decode_configuration
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import (
    APPLIED_KEY,
    MetadataRowKind,
    answer_key,
    change_key,
    kind_range,
)

# Most rows of revisions kept by an earlier setting that one batch deletes besides its own.
_MAX_LEFTOVERS = 1_000


class MetadataMachine:
    """Implements `strata_multiraft.base.ports.StateMachine` over a metadata store.

    Args:
        store: the rows.
        hub: told every applied revision.
        config: how many revisions a watcher may be behind.
        metrics: revision and rows.

    Attributes:
        speculative: what the leader decides on; meaningless while another one leads.
        leading: set while this replica is the ready leader.
        leading_term: the term in which it became so last.
    """

    def __init__(
        self, store: MetadataStore, hub: WatchHub, config: NameserverConfig, *, metrics: Metrics
    ) -> None:
        self._store = store
        self._hub = hub
        self._kept_revisions = config.max_kept_revisions
        # Rows of older revisions may be there: more were kept before this start.
        self._has_leftovers = True
        self._applied = applied_state(store)
        store.sync()
        self._persisted_index = self._applied.index
        self.speculative = SpeculativeState(store)
        self.leading = asyncio.Event()
        self.leading_term = 0
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
            "queue_override": config.max_queue_overrides,
            "quota": config.max_quotas,
            "tombstone": config.max_tombstones,
            "user": config.max_users,
            "policy": config.max_policies,
            "answer": MAX_ANSWERS,
        }
        metrics.gauge(
            "strata_metadata_rows_maximum",
            lambda: [(maximum, {"kind": kind}) for kind, maximum in limits.items()],
        )

    @property
    def revision(self) -> int:
        """Revision of the applied rows."""
        return self._applied.counters.revision

    def rows(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the applied values of keys from `first` up to, not including, `end`.

        To show them: what is decided is decided on `speculative` (rule 1).

        Raises:
            MetaRefused: UNAVAILABLE: a snapshot is replacing them.
        """
        values = [value for _, value in self._store.scan(first, end)]
        if self._hub.is_paused:
            # Asked after the scan: a thread may have begun to drop them before.
            raise MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, NOT_WHOLE)
        return values

    def applied_index(self) -> int:
        """Return the index of the last entry whose rows are in the store (0: none)."""
        return self._applied.index

    def applied_term(self) -> int:
        """Return the term of that entry (0: none)."""
        return self._applied.term

    def configuration(self) -> tuple[int, Configuration] | None:
        """Return the applied configuration of the metadata raft group and its entry's index."""
        if not self._applied.HasField("configuration"):
            return None
        row = self._applied.configuration
        configuration = Configuration(
            frozenset(row.voters), frozenset(row.learners), frozenset(row.outgoing)
        )
        return row.configuration_index, configuration

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
        applied = command_pb2.AppliedState(configuration=self._configuration_row())
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                applied.configuration.CopyFrom(configuration_row(entry.index, entry.payload))
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
                keys=keys, stamp=counters.stamp
            ).SerializeToString()
            # One more than a watcher may be behind: the stamp of its own revision is compared.
            if command.HasField("answered"):
                rows[answer_key(counters.revision)] = command.answered.SerializeToString()
            rows.update(dict.fromkeys(map(answer_key, command.forgotten_answers)))
            if counters.revision > self._kept_revisions + 1:
                rows[change_key(counters.revision - self._kept_revisions - 1)] = None
            revisions.append(
                Revision(
                    counters.revision - 1,
                    counters.revision,
                    tuple(command.changes),
                    counters.stamp,
                )
            )
        applied.index, applied.term = entries[-1].index, entries[-1].term
        applied.counters.CopyFrom(counters)
        rows[APPLIED_KEY] = applied.SerializeToString()
        leftovers = self._leftovers(counters.revision)
        rows.update(dict.fromkeys(leftovers))
        self._store.write(
            [(key, value) for key, value in rows.items() if value is not None],
            [key for key, value in rows.items() if value is None],
        )
        self._applied = applied
        self._has_leftovers = len(leftovers) == _MAX_LEFTOVERS
        for revision in revisions:
            self.speculative.applied(revision.number, revision.changes)
        self._changes_total.add(len(revisions))
        self._hub.publish(revisions)

    def on_leader(self, term: int) -> None:
        """Start deciding from the applied rows."""
        self.speculative.reset()
        self.leading_term = term
        self.leading.set()

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """Drop what was in flight."""
        self.leading.clear()
        self.speculative.reset()

    def installed(self) -> None:
        """All rows were replaced by a snapshot: start from them."""
        self._applied = applied_state(self._store)
        self._persisted_index = self._applied.index
        self._has_leftovers = True
        self.speculative.reset()
        self._hub.reset(self.revision, self._applied.counters.stamp)

    def _leftovers(self, revision: int) -> list[bytes]:
        """Return keys of revisions that are not to be kept with this one, the oldest first."""
        if not self._has_leftovers or revision <= self._kept_revisions:
            return []
        first = kind_range(MetadataRowKind.CHANGE)[0]
        rows = self._store.scan(first, change_key(revision - self._kept_revisions))
        return [key for key, _ in islice(rows, _MAX_LEFTOVERS)]

    def _configuration_row(self) -> meta_pb2.Membership | None:
        return self._applied.configuration if self._applied.HasField("configuration") else None

    def _row_counts(self) -> list[tuple[float, dict[str, str]]]:
        counters = self._applied.counters
        return [
            (counters.topic_count, {"kind": "topic"}),
            (counters.consumer_group_count, {"kind": "consumer_group"}),
            (counters.node_count, {"kind": "node"}),
            (counters.queue_override_count, {"kind": "queue_override"}),
            (counters.quota_count, {"kind": "quota"}),
            (counters.tombstone_count, {"kind": "tombstone"}),
            (counters.user_count, {"kind": "user"}),
            (counters.policy_count, {"kind": "policy"}),
            (counters.answer_count, {"kind": "answer"}),
        ]


def configuration_row(index: int, payload: Payload) -> meta_pb2.Membership:
    """Return what the applied row says of the configuration that an entry brings."""
    configuration = decode_configuration(payload)
    return meta_pb2.Membership(
        configuration_index=index,
        voters=sorted(configuration.voters),
        learners=sorted(configuration.learners),
        outgoing=sorted(configuration.outgoing),
    )
