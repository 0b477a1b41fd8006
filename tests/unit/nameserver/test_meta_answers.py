"""MetaService says in each response whether the call was carried out."""

from __future__ import annotations

from typing import cast

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import FORBIDDEN, AngeliaError, CallContext
from strata_metadata.errors import MetaRefused
from strata_metadata.identity import KnownNode
from strata_nameserver.leading.metadata import Metadata
from strata_nameserver.servicers.meta import MetaAnswers, MetaServicer
from strata_runtime.roles import PeerRole

CONTEXT = CallContext(timeout_s=None)


class FollowersMetadata:
    """Another nameserver leads."""

    async def register_node(self, node: meta_pb2.Node) -> list[meta_pb2.HostedReplica]:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_LEADER, "ask b")

    def kind_of(self, node_id: str) -> meta_pb2.NodeKind.ValueType:
        return meta_pb2.NODE_KIND_STORAGE


def servicer_of(cluster_id: str) -> MetaServicer:
    answers = MetaAnswers(lambda: ("b", "127.0.0.1:7"))
    cluster = ClusterId()
    cluster.learn(cluster_id)
    servicer = MetaServicer(cluster, lambda _: KnownNode(is_known=False, replicas=0), answers)
    servicer.serve(cast("Metadata", FollowersMetadata()))
    return servicer


async def test_a_refused_node_learns_its_cluster_and_the_leader() -> None:
    servicer = servicer_of("strata-1")
    response = await servicer.register_node(meta_pb2.RegisterNodeRequest(), CONTEXT)
    servicer.answers.complete(response)
    status = meta_pb2.MetaStatus(
        outcome=meta_pb2.META_OUTCOME_NOT_LEADER,
        reason="ask b",
        leader_node_id="b",
        leader_endpoint="127.0.0.1:7",
    )
    assert response == meta_pb2.RegisterNodeResponse(status=status, cluster_id="strata-1")


def test_a_response_that_says_nothing_else_is_ok() -> None:
    response = meta_pb2.DeleteTopicResponse()
    servicer_of("strata-1").answers.complete(response)
    assert response.status == meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)


@pytest.mark.parametrize("role", [PeerRole.BROKER, PeerRole.NAMESERVER])
async def test_a_certificate_speaks_for_nodes_of_its_own_kind(role: PeerRole) -> None:
    """A broker or a nameserver cannot register as a storage node, nor send its heartbeats."""
    servicer = servicer_of("strata-1")
    node = meta_pb2.Node(node_id="s", kind=meta_pb2.NODE_KIND_STORAGE)
    request = meta_pb2.RegisterNodeRequest(node=node, cluster_id="strata-1")
    for forged in (
        servicer.register_node(request, CallContext(None, role=role)),
        servicer.heartbeat(
            meta_pb2.HeartbeatRequest(node_id="s", cluster_id="strata-1"),
            CallContext(None, role=role),
        ),
    ):
        with pytest.raises(AngeliaError) as refused:
            await forged
        assert refused.value.code == FORBIDDEN
        assert refused.value.reason == f"a {role} cannot speak for a storage node"
    # The storage node itself gets as far as the metadata, which another nameserver leads.
    response = await servicer.register_node(request, CallContext(None, role=PeerRole.STORAGE))
    assert response.status.outcome == meta_pb2.META_OUTCOME_NOT_LEADER
