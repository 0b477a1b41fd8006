"""Takes a replica that was put aside back into the log of a node that is stopped (rule 32).

It comes back under its own replica id, with all that it ever acknowledged: its entries, its newest
checkpoint and its hard state. The rows are made from these when the node hosts it again. A node
hosts it when the metadata wants it there; if it does not, the replica stays in the log until a
newer row of its raft group is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strata_seglog.log import CommitLog
from strata_seglog.options import LogOptions
from strata_seglog.put_aside import ClosedLog, take_back
from strata_seglog.real_disk import RealDisk
from strata_storage.base.removed_replicas import (
    AsideOptions,
    RemovedReplica,
    RemovedReplicaError,
    RemovedReplicas,
    read_note,
)


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore.

    Attributes:
        replica: what it was.
        entries: how many were written; 0: all of them were there already.
    """

    replica: RemovedReplica
    entries: int


def removed_replicas(storage: Path) -> list[RemovedReplica]:
    """Return what stands aside, the oldest first.

    Args:
        storage: `storage` of a data folder.
    """
    return [each for each in _aside(storage).listed() if not each.is_back]


def restore_replica(
    storage: Path, replica_id: int, cluster_id: str, options: LogOptions
) -> Restored:
    """Take one replica back. Nobody else has the folder open.

    Args:
        storage: `storage` of a data folder.
        replica_id: which one.
        cluster_id: that the folder belongs to.
        options: of the node's log.

    Raises:
        RemovedReplicaError: it is not there, is damaged, or of another cluster.
        LogError: it cannot be read, or not be written; the log is as before.
        OSError: the folder cannot be read or written.
    """
    aside = _aside(storage)
    replica = read_note(aside.path(replica_id))
    if replica.is_back:
        return Restored(replica, 0)
    if replica.cluster_id != cluster_id:
        raise RemovedReplicaError(
            f"replica {replica_id} is of cluster {replica.cluster_id or 'none'}, "
            f"the folder of {cluster_id or 'none'}"
        )
    source = ClosedLog.open(
        RealDisk(aside.log_of(replica_id)), options, report=lambda corruption: None
    )
    try:
        _check(source, replica)
        log = CommitLog.open(RealDisk(storage / "log"), options, report=lambda corruption: None)
        try:
            hard_state = (replica.term, replica.vote, replica.commit)
            entries = take_back(log, source, replica_id, hard_state)
        finally:
            log.close()
    finally:
        source.close()
    aside.is_taken_back(replica)
    return Restored(replica, entries)


def _aside(storage: Path) -> RemovedReplicas:
    return RemovedReplicas(storage / "removed", storage / "log", AsideOptions())


def _check(source: ClosedLog, replica: RemovedReplica) -> None:
    """See that the segments hold what the note says."""
    held = source.replicas().get(replica.replica_id)
    expected = (replica.raft_group, replica.first_index, replica.last_index)
    found = (0, 0, 0) if held is None else (held.raft_group, held.first_index, held.last_index)
    if found != expected:
        raise RemovedReplicaError(
            f"replica {replica.replica_id} had entries {expected[1]} to {expected[2]}, "
            f"{found[1]} to {found[2]} are left"
        )
