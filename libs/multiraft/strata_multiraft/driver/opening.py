"""Opens a replica from its state machine and the log: the end of its log and its membership.

Rule 8 is enforced here: a replica that contradicts itself is damaged and takes no part in
elections. Opening reads footers and configuration entries, so it may block for a moment; a replica
that is new to the log costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.ports import Log, SnapshotStore, StateMachine
from strata_multiraft.replica.replica import ReplicaSpec
from strata_multiraft.replica.stored_log import EMPTY_LOG, Floor, LogEnds, StoredLog
from strata_multiraft.replica.writes import floor_of
from strata_raft import (
    Configuration,
    EntryKind,
    HardState,
    RaftOptions,
    RawNode,
    SnapshotMetadata,
)
from strata_raft.membership import Membership, decode_configuration
from strata_seglog.index import VOID_INDEX, ReplicaLog


@dataclass(frozen=True, slots=True)
class OpenedReplica:
    """Starting point of a replica.

    Attributes:
        node: the raft core.
        stored: its log.
        damage: why it takes no entries (rule 8); empty: it does.
        floor: entries up to there were acknowledged and may be gone (rule 8).
        is_interrupted: an install was cut by a crash: it must be reset before it takes part.
    """

    node: RawNode
    stored: StoredLog
    damage: str
    floor: Floor
    is_interrupted: bool


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens replicas of one node.

    Attributes:
        log: the node's CommitLog.
        options: limits and times.
        election_timeout_ticks: gives a random election timeout.
    """

    log: Log
    options: MultiRaftOptions
    election_timeout_ticks: Callable[[], int]

    def open(
        self,
        spec: ReplicaSpec,
        machine: StateMachine,
        snapshots: SnapshotStore | None,
        offer: Callable[[], SnapshotMetadata | None],
        *,
        known_damage: str = "",
    ) -> OpenedReplica:
        """Open a replica from log and rows.

        Args:
            spec: what the nameserver said.
            machine: its rows.
            snapshots: gives and takes them as a whole; None: nobody does.
            offer: the snapshot that followers may be offered.
            known_damage: what the owner found damaged, if anything.

        Raises:
            ValueError: the replica was removed from this node (rule 9).
        """
        found = self.log.replica(spec.replica_id)
        if found is not None and found.removed:
            raise ValueError(f"replica {spec.replica_id} was removed from this node")
        floor = self._floor(spec.replica_id)
        if snapshots is not None and snapshots.is_installing():
            if found is not None:
                # The crash may have come before the log was truncated: its last entries still bind.
                floor = max(floor, (found.last_term, found.last_index))
            opened = self._open_empty(spec, _hard_state(found), floor, offer)
            return OpenedReplica(opened.node, opened.stored, "", floor, is_interrupted=True)
        ends, damage = _log_ends(found, machine)
        damage = known_damage or damage
        stored = StoredLog(self.log, spec.replica_id, ends, offer=offer)
        base_index, base = machine.configuration() or (0, Configuration(spec.voters))
        later: list[tuple[int, Configuration]] = []
        if found is not None and not damage:
            later = self._configurations(spec.replica_id, max(base_index + 1, ends.first_index))
        node = RawNode(
            spec.replica_id,
            stored,
            Membership(base, later, base_index=base_index),
            election_timeout_ticks=self.election_timeout_ticks,
            hard_state=_hard_state(found),
            floor=floor,
            options=self._raft_options(),
        )
        return OpenedReplica(node, stored, damage, floor, is_interrupted=False)

    def open_truncated(
        self, spec: ReplicaSpec, offer: Callable[[], SnapshotMetadata | None]
    ) -> OpenedReplica:
        """Open a replica whose rows and entries are void; term, vote and floor hold."""
        found = self.log.replica(spec.replica_id)
        return self._open_empty(spec, _hard_state(found), self._floor(spec.replica_id), offer)

    def _open_empty(
        self,
        spec: ReplicaSpec,
        hard_state: HardState,
        floor: Floor,
        offer: Callable[[], SnapshotMetadata | None],
    ) -> OpenedReplica:
        stored = StoredLog(self.log, spec.replica_id, EMPTY_LOG, offer=offer)
        node = RawNode(
            spec.replica_id,
            stored,
            Membership(Configuration(spec.voters)),
            election_timeout_ticks=self.election_timeout_ticks,
            hard_state=hard_state,
            floor=floor,
            options=self._raft_options(),
        )
        return OpenedReplica(node, stored, "", floor, is_interrupted=False)

    def _floor(self, replica_id: int) -> Floor:
        if self.log.term(replica_id, VOID_INDEX) is None:
            return (0, 0)
        frames = self.log.entries(replica_id, VOID_INDEX, VOID_INDEX, 1)
        return max(map(floor_of, frames))

    def _configurations(self, replica_id: int, first: int) -> list[tuple[int, Configuration]]:
        return [
            (frame.index, decode_configuration((frame.payload,)))
            for index in self.log.indexes_of_kind(replica_id, EntryKind.CONFIGURATION)
            if index >= first
            for frame in self.log.entries(replica_id, index, index, 1)
        ]

    def _raft_options(self) -> RaftOptions:
        return RaftOptions(
            election_ticks=self.options.election_ticks_min,
            max_append_bytes=self.options.max_append_bytes,
            max_inflight_bytes=self.options.max_peer_inflight_bytes,
            tells_commit_at_once=False,
        )


def _hard_state(found: ReplicaLog | None) -> HardState:
    return HardState() if found is None else HardState(found.term, found.vote, found.commit)


def _log_ends(found: ReplicaLog | None, machine: StateMachine) -> tuple[LogEnds, str]:
    """Return where the log begins and ends, and why the replica is damaged, if it is."""
    applied, applied_term = machine.applied_index(), machine.applied_term()
    if found is not None and not found.last_index:
        # All entries were freed below what is applied, or none ever came.
        return LogEnds(applied + 1, applied, applied_term, applied_term), found.damaged
    if found is None:
        ends = EMPTY_LOG
    else:
        before = found.first_index - 1
        known = 0 if before == 0 else (applied_term if before == applied else None)
        ends = LogEnds(found.first_index, found.last_index, found.last_term, known)
        if found.damaged:
            return ends, found.damaged
    if applied > ends.last_index:
        return ends, f"applied index {applied} is beyond the log's end {ends.last_index}"
    if applied + 1 < ends.first_index:
        return ends, f"applied index {applied}, but the log begins at {ends.first_index}"
    return ends, ""
