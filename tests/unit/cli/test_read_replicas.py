"""Read replicas: which nodes get one, which lose theirs, and what is asked of the cluster."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import CallFailed
from strata_cli.commands.read_replicas import (
    LearnerChange,
    next_change,
    set_read_replicas,
)
from strata_cli.errors import CliError

LOADS = {"a": 9.0, "b": 1.0, "c": 5.0, "d": 7.0, "e": 2.0, "f": 3.0}


def raft_group(*readers: str, number: int = 1) -> meta_pb2.RaftGroup:
    """Return a raft group with voters on a, b and c."""
    row = meta_pb2.RaftGroup(raft_group=number)
    for node_id in ("a", "b", "c"):
        row.replicas.add(node_id=node_id)
    for node_id in readers:
        row.replicas.add(node_id=node_id, learner=True)
    return row


@pytest.mark.parametrize(
    ("readers", "count", "change"),
    [
        ((), 0, LearnerChange()),
        (("e",), 1, LearnerChange()),
        ((), 2, LearnerChange(add=("e", "f"))),
        (("d",), 2, LearnerChange(add=("e",))),
        (("d", "e"), 1, LearnerChange(remove=("d",))),
        (("d", "e"), 0, LearnerChange(remove=("e", "d"))),
    ],
)
def test_the_calmest_nodes_get_them(
    readers: tuple[str, ...], count: int, change: LearnerChange
) -> None:
    """Voters stay what they are; the busiest loses its read replica first."""
    row = raft_group(*readers)
    assert next_change(row, count, LOADS, fit=LOADS.keys(), machines={}) == change


def test_too_few_nodes_are_said() -> None:
    """Nodes that are slow or drain do not count."""
    with pytest.raises(CliError, match="add storage nodes"):
        next_change(raft_group(), 2, LOADS, fit=["a", "b", "c", "d"], machines={})


def test_a_machine_gets_one_replica() -> None:
    """Neither beside a voter nor beside another read replica."""
    machines = {"a": "m1", "e": "m1", "f": "m2", "d": "m2"}

    change = next_change(raft_group(), 1, LOADS, fit=LOADS.keys(), machines=machines)
    assert change == LearnerChange(add=("f",))
    with pytest.raises(CliError, match="1 storage nodes on other machines could take one; 2 more"):
        next_change(raft_group(), 2, LOADS, fit=LOADS.keys(), machines=machines)


class FakeClient:
    """A broker of a cluster with a topic in two raft groups; the first change is refused once."""

    timeout_s = 5.0

    def __init__(self) -> None:
        self.admin = self
        self.changes: list[admin_pb2.ChangeReplicasRequest] = []
        self.is_busy = True

    def call(self, method: Any, request: Any) -> Any:
        return method(request)

    def GetTopic(self, request: admin_pb2.GetTopicRequest) -> admin_pb2.GetTopicResponse:
        assert (request.namespace, request.name) == ("shop", "orders")
        queues = [admin_pb2.QueueStatus(queue=at, raft_group=1 + at % 2) for at in range(4)]
        return admin_pb2.GetTopicResponse(queues=queues)

    def GetCluster(self, request: admin_pb2.GetClusterRequest) -> admin_pb2.GetClusterResponse:
        response = admin_pb2.GetClusterResponse()
        for node_id in LOADS:
            response.nodes.add(
                node_id=node_id,
                kind=meta_pb2.NODE_KIND_STORAGE,
                state=meta_pb2.NODE_STATE_UP,
                draining=node_id == "f",
            )
        return response

    def GetPlacement(
        self, request: admin_pb2.GetPlacementRequest
    ) -> admin_pb2.GetPlacementResponse:
        response = admin_pb2.GetPlacementResponse()
        for node_id, load in LOADS.items():
            response.loads.add(node_id=node_id, bytes_per_s=load, is_slow=node_id == "e")
        return response

    def GetRaftGroup(
        self, request: admin_pb2.GetRaftGroupRequest
    ) -> admin_pb2.GetRaftGroupResponse:
        return admin_pb2.GetRaftGroupResponse(row=raft_group(number=request.raft_group))

    def ChangeReplicas(
        self, request: admin_pb2.ChangeReplicasRequest
    ) -> admin_pb2.ChangeReplicasResponse:
        if self.is_busy:
            self.is_busy = False
            raise CallFailed("try again later", grpc.StatusCode.FAILED_PRECONDITION)
        self.changes.append(request)
        return admin_pb2.ChangeReplicasResponse()


def test_every_raft_group_of_a_topic_gets_them() -> None:
    """On nodes that neither drain nor are slow; a change under way is waited for."""
    client: Any = FakeClient()
    set_read_replicas(client, "shop", "orders", 1)
    assert [
        (change.raft_group, list(change.add_node_ids), change.learners) for change in client.changes
    ] == [(1, ["d"], True), (2, ["d"], True)]


@pytest.mark.parametrize("status", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND])
def test_a_change_that_is_impossible_is_asked_for_once(status: grpc.StatusCode) -> None:
    """Only the status says that a refusal passes, whatever the words of the refusal are."""
    client: Any = FakeClient()
    asked: list[int] = []

    def refuse(request: admin_pb2.ChangeReplicasRequest) -> admin_pb2.ChangeReplicasResponse:
        asked.append(request.raft_group)
        raise CallFailed("still carrying out an earlier change", status)

    client.ChangeReplicas = refuse
    with pytest.raises(CallFailed):
        set_read_replicas(client, "shop", "orders", 1)
    assert asked == [1]
