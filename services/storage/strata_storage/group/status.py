"""How a replica is, for people and for repair: `strata.storage.v1.ReplicaStatus`."""

from __future__ import annotations

from collections.abc import Callable

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft import Replica
from strata_storage.group.engine import GroupEngine

# Under load a few committed entries always wait to be applied.
_RECOVERING_ENTRIES = 1_000


def replica_status(
    engine: GroupEngine, replica: Replica, node_of: Callable[[int], str], damage: str
) -> pb.ReplicaStatus:
    """Return how far a replica is and, on the leader, how far its followers are.

    Args:
        engine: of the raft group.
        replica: the replica here.
        node_of: replica id -> node id.
        damage: what the log knows to be damaged; it must be seen though the replica may serve.
    """
    configuration = replica.configuration
    return pb.ReplicaStatus(
        raft_group=replica.raft_group,
        replica_id=replica.replica_id,
        state=_state(replica),
        term=replica.term,
        first_index=replica.first_index,
        last_index=replica.last_index,
        commit_index=replica.commit_index,
        applied_index=replica.applied_index,
        persisted_index=engine.machine.persisted_index(),
        leader=engine.leader is not None,
        reason=replica.read_only or damage,
        leader_replica_id=replica.leader_replica_id,
        voters=sorted(configuration.voters),
        learners=sorted(configuration.learners),
        progress=[
            pb.ReplicaProgress(
                replica_id=progress.replica_id,
                node_id=node_of(progress.replica_id),
                match_index=progress.match_index,
                state=progress.state,
                recently_heard=progress.recently_heard,
            )
            for progress in replica.progress()
        ],
    )


def _state(replica: Replica) -> pb.ReplicaState.ValueType:
    if replica.read_only:
        return pb.REPLICA_STATE_READ_ONLY
    if replica.installing:
        return pb.REPLICA_STATE_LOADING
    if replica.is_behind() or replica.apply_lag() > _RECOVERING_ENTRIES:
        return pb.REPLICA_STATE_RECOVERING
    return pb.REPLICA_STATE_SERVING
