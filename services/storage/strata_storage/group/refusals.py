"""How a storage node's services refuse: the response's field `refusal` says why."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2 as pb
from strata_runtime.metrics import Counter
from strata_storage.base.errors import Refused


class Nodes(Protocol):
    """Where replicas are."""

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica, "" if unknown."""


class Refusing(Protocol):
    """A response, or a part of one, that can say why there is nothing else in it."""

    @property
    def refusal(self) -> pb.Refusal:
        """Why."""


class Refusals:
    """`strata_angelia.serving.Answers` of a storage node.

    Args:
        nodes: say where the leader is.
        refused: counts by outcome; None: nobody does.
    """

    refusal = Refused

    def __init__(self, nodes: Nodes, refused: Counter | None = None) -> None:
        self._nodes = nodes
        self._refused = refused

    def refuse(self, response: Refusing, refusal: Refused) -> None:
        """Say why nothing was done."""
        if self._refused is not None:
            self._refused.add(1, {"outcome": pb.Outcome.Name(refusal.outcome)})
        response.refusal.outcome = refusal.outcome
        response.refusal.reason = refusal.reason
        if refusal.leader_replica_id:
            response.refusal.leader_node_id = self._nodes.node_of(refusal.leader_replica_id)

    def complete(self, response: Message) -> None:
        """A response without a refusal says that all is well."""
