"""A refusal says its outcome, its reason and where the leader is."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_runtime.metrics import Metrics
from strata_storage.base.errors import Refused
from strata_storage.group.refusals import Refusals
from strata_storage.process.metrics import METRICS


class TwoNodes:
    """Replica 2 is on a node that is known."""

    def node_of(self, replica_id: int) -> str:
        return "b" if replica_id == 2 else ""


def test_a_refusal_names_the_leaders_node() -> None:
    response = pb.FetchResponse()
    Refusals(TwoNodes()).refuse(response, Refused(pb.OUTCOME_NOT_LEADER, "led elsewhere", 2))
    refusal = pb.Refusal(outcome=pb.OUTCOME_NOT_LEADER, reason="led elsewhere", leader_node_id="b")
    assert response == pb.FetchResponse(refusal=refusal)


def test_refusals_are_counted_where_there_is_a_counter() -> None:
    metrics = Metrics()
    metrics.declare(METRICS)
    refused = metrics.counter("strata_storage_refused_total")
    full = Refused(pb.OUTCOME_DISK_FULL, "no room")
    Refusals(TwoNodes(), refused).refuse(pb.FetchResponse(), full)
    Refusals(TwoNodes()).refuse(pb.FetchResponse(), full)
    assert refused.points() == [((("outcome", "OUTCOME_DISK_FULL"),), 1)]
