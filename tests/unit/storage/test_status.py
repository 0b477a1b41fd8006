"""How a storage node says its replicas are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft import Replica
from strata_raft.types import Configuration
from strata_storage.group.engine import GroupEngine
from strata_storage.group.status import replica_status


class FakeReplica(SimpleNamespace):
    """A replica that is well, but for what a test says."""

    def __init__(self, **said: object) -> None:
        super().__init__(**said)
        self.raft_group, self.replica_id, self.leader_replica_id = 3, 10, 11
        self.term, self.first_index, self.last_index = 4, 1, 5_000
        self.commit_index = self.applied_index = 5_000
        self.configuration = Configuration(frozenset({10, 11, 12}))

    def is_behind(self) -> bool:
        return bool(self.__dict__.get("behind"))

    def apply_lag(self) -> int:
        return int(self.__dict__.get("lag", 0))

    def progress(self) -> list[object]:
        return []


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({}, pb.REPLICA_STATE_SERVING),
        ({"lag": 1}, pb.REPLICA_STATE_SERVING),
        ({"lag": 1_000}, pb.REPLICA_STATE_SERVING),
        ({"lag": 1_001}, pb.REPLICA_STATE_RECOVERING),
        ({"behind": True}, pb.REPLICA_STATE_RECOVERING),
        ({"installing": True, "lag": 9_000}, pb.REPLICA_STATE_LOADING),
        ({"read_only": "payload checksum", "lag": 9_000}, pb.REPLICA_STATE_READ_ONLY),
    ],
)
def test_a_replica_under_load_is_not_recovering(
    said: dict[str, object], state: pb.ReplicaState.ValueType
) -> None:
    """A few committed entries always wait to be applied; only a backlog is recovery."""
    replica = FakeReplica(**{"read_only": "", "installing": False, **said})
    engine = SimpleNamespace(leader=None, machine=SimpleNamespace(persisted_index=lambda: 4_000))
    shown = replica_status(cast(GroupEngine, engine), cast(Replica, replica), str, "")
    assert shown.state == state
    assert shown.reason == said.get("read_only", "")
    assert (shown.raft_group, shown.replica_id, shown.persisted_index) == (3, 10, 4_000)
