"""Names and addresses in routes of the remoting protocol.

A remoting client finds the broker of a queue by a name, and many requests carry the number of a
queue but no name. So a queue's id is its number in the topic, and all queues of a topic are under
one name. There are `NAME_COUNT` names; the hash of a topic chooses one, and the rendezvous hash of
the name chooses one live broker. All remoting clients of a topic meet at this broker, which
therefore knows all members of their consumer groups and can lock queues for them.
"""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_broker.clients.route import preferred_endpoint
from strata_broker.metadata.metadata import MetadataView
from strata_mq.layout import text_hash

NAME_COUNT = 16
"""Broker names of the remoting protocol; fixed, because clients keep offsets under them."""


def broker_name_of(topic: str) -> str:
    """Return the broker name that all queues of a topic have."""
    return _name(text_hash(topic) % NAME_COUNT)


def broker_names() -> list[str]:
    """Return all broker names, in order."""
    return [_name(number) for number in range(NAME_COUNT)]


class RemotingAddresses:
    """Knows which broker stands behind a broker name. Used on the event loop only.

    Args:
        view: knows the brokers.
    """

    def __init__(self, view: MetadataView) -> None:
        self._view = view
        self.own = ""

    def of(self, broker_name: str) -> str:
        """Return HOST:PORT of the broker behind a name: this broker, while it knows no other."""
        nodes = [
            node for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER) if node.remoting_endpoint
        ]
        live = [
            node for node in nodes if node.state != meta_pb2.NODE_STATE_DOWN and not node.draining
        ]
        endpoints = [node.remoting_endpoint for node in live or nodes]
        return preferred_endpoint(broker_name.encode(), endpoints) or self.own


def _name(number: int) -> str:
    return f"strata-r{number:02d}"
