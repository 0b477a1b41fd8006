"""Routes and assignments: the queues that clients see, and the addresses to connect to.

Rule 20: a broker name stands for a raft group. A route lists, under each broker name with n
queues, the local ids 0 .. n-1. Id 0 means any of them, id i > 0 the i-th of the topic's row. So
every queue is reached by "any", and all but the last by name; clients that only use id 0 (Node)
reach everything. Invariant: equal metadata gives byte-equal answers on every broker, because
clients compare whole queues and rebuild those that changed.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base import errors
from strata_broker.base.config import RouteSection
from strata_broker.metadata.metadata import Home, MetadataView, TopicRow
from strata_mq.layout import text_hash
from strata_mq.requests import ACCEPTED_TYPES, Code, RequestError, TopicType
from strata_mq.slots import rendezvous

ANY_QUEUE = -1
"""Queue id of an assignment of a plain consumer group: any queue under the broker name."""


class Routes:
    """Builds routes; keeps serialised ones ready."""

    def __init__(self, view: MetadataView, config: RouteSection, own_endpoint: str) -> None:
        self._view = view
        self._config = config
        self._own_endpoint = own_endpoint
        # topic id -> (placement version, row, answer), least recently used first
        self._cache: OrderedDict[int, tuple[int, TopicRow, bytes]] = OrderedDict()

    def set_own_endpoint(self, endpoint: str) -> None:
        """Set this broker's own address, once it listens; used when no broker is registered."""
        self._own_endpoint = endpoint
        self._cache.clear()

    def route(self, topic: TopicRow) -> bytes:
        """Return a serialised QueryRouteResponse.

        Raises:
            RequestError: FORBIDDEN, no raft group serves a queue of the topic.
        """
        cached = self._cache.get(topic.topic_id)
        version = self._view.placement_version
        if cached is not None and cached[0] == version and cached[1] is topic:
            self._cache.move_to_end(topic.topic_id)
            return cached[2]
        response = service_pb2.QueryRouteResponse(
            status=errors.ok_status(), message_queues=self._queues(topic)
        )
        answer = response.SerializeToString()
        self._cache[topic.topic_id] = (version, topic, answer)
        self._cache.move_to_end(topic.topic_id)
        if len(self._cache) > self._config.max_cached_routes:
            self._cache.popitem(last=False)
        return answer

    def assignments(self, topic: TopicRow, *, fifo: bool) -> list[definition_pb2.Assignment]:
        """Return the assignment of every push consumer of a consumer group: the whole topic.

        A plain group gets one entry per broker name with id -1; a FIFO group the queues of the
        route. Sharing is by leases, not by exclusive queues.

        Raises:
            RequestError: FORBIDDEN, no queue can be read.
        """
        queues = self._queues(topic)
        if not fifo:
            queues = [queue for queue in queues if queue.id == 0]
        assignments = []
        for queue in queues:
            if not fifo:
                queue.id = ANY_QUEUE
            del queue.accept_message_types[:]
            assignments.append(definition_pb2.Assignment(message_queue=queue))
        return assignments

    def _queues(self, topic: TopicRow) -> list[definition_pb2.MessageQueue]:
        homes = self._view.homes(topic)
        if not homes:
            raise RequestError(Code.FORBIDDEN, "no readable queue")
        return [
            self._queue(topic, home, local_id)
            for home in homes
            for local_id in range(len(home.queues))
        ]

    def _queue(self, topic: TopicRow, home: Home, local_id: int) -> definition_pb2.MessageQueue:
        # A message reaches a dead-letter topic by the storage nodes only.
        permission = definition_pb2.READ if topic.is_dead_letter else definition_pb2.READ_WRITE
        return definition_pb2.MessageQueue(
            topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
            id=local_id,
            permission=permission,
            broker=definition_pb2.Broker(
                name=home.broker_name, id=0, endpoints=self._endpoints(home.raft_group)
            ),
            accept_message_types=[
                definition_pb2.MessageType.ValueType(int(accepted))
                for accepted in ACCEPTED_TYPES[TopicType(topic.topic_type)]
            ],
        )

    def _endpoints(self, raft_group: int) -> definition_pb2.Endpoints:
        """Return exactly one address: the advertised one, or the raft group's preferred broker."""
        endpoint = self._config.advertised_endpoint
        if not endpoint:
            brokers = self._live_brokers()
            endpoint = preferred_endpoint(raft_group.to_bytes(4), brokers) or self._own_endpoint
        return endpoints_message(endpoint)

    def _live_brokers(self) -> list[str]:
        """Return the addresses that routes may name: all if no broker is known to be up.

        A broker that was silent only for a moment stays, because clients rebuild their state with
        every change of a route.
        """
        brokers = [
            node for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER) if node.advertised_endpoint
        ]
        live = [
            node for node in brokers if node.state != meta_pb2.NODE_STATE_DOWN and not node.draining
        ]
        return [node.advertised_endpoint for node in live or brokers]


def preferred_endpoint(key: bytes, brokers: Sequence[str]) -> str:
    """Return the broker that a key prefers, of a raft group's queues; "": none is registered."""
    if not brokers:
        return ""
    by_hash = {text_hash(broker): broker for broker in brokers}
    return by_hash[rendezvous(key, sorted(by_hash))]


def endpoints_message(endpoint: str) -> definition_pb2.Endpoints:
    """Return `host:port` as Endpoints; the scheme is always explicit (clients need it)."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        scheme = definition_pb2.DOMAIN_NAME
    else:
        scheme = definition_pb2.IPv4 if version == 4 else definition_pb2.IPv6
    return definition_pb2.Endpoints(
        scheme=scheme, addresses=[definition_pb2.Address(host=host, port=int(port))]
    )
