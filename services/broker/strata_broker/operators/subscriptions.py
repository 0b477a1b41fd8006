"""Subscriptions and their progress: consumer groups as RocketMQ's Admin service shows them.

The view joins the live clients of all brokers, the consumer groups' rows and their state in
storage; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from apache.rocketmq.v2 import admin_pb2, definition_pb2
from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.peers import BrokerPeers
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.metadata.requests import enum_name
from strata_broker.operators.topics import Operations
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock

_Pair = tuple[str, str]
"""(consumer group, topic) of one namespace."""


class Subscriptions:
    """See the module docstring."""

    def __init__(
        self, view: MetadataView, operations: Operations, peers: BrokerPeers, *, clock: Clock
    ) -> None:
        self._view = view
        self._operations = operations
        self._peers = peers
        self._clock = clock

    async def find(
        self, namespace: str, group: str, topic: str
    ) -> list[admin_pb2.SubscriptionInfo]:
        """Return the subscriptions of a consumer group, of a topic, or the one that names both.

        Raises:
            RequestError: neither is named, or one is unknown.
        """
        clients = await self._clients(namespace, group, topic)
        pairs: dict[_Pair, list[peer_pb2.ConnectedClient]] = {
            pair: [] for pair in await self._stored_pairs(namespace, group, topic)
        }
        for client in clients:
            for subscribed in client.subscriptions:
                if topic in ("", subscribed):
                    pairs.setdefault((client.consumer_group, subscribed), []).append(client)
        return [self._info(namespace, pair, pairs[pair]) for pair in sorted(pairs)]

    async def describe(
        self, namespace: str, group: str, topic: str
    ) -> list[admin_pb2.DescribeSubscriptionResponse.ClientSubscriptionInfo]:
        """Return the subscriptions of every live client, by client id.

        Raises:
            RequestError: neither is named, or one is unknown.
        """
        described = []
        for client in await self._clients(namespace, group, topic):
            for subscribed in sorted(client.subscriptions):
                if topic in ("", subscribed):
                    info = self._info(namespace, (client.consumer_group, subscribed), [client])
                    described.append(
                        admin_pb2.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                            client_info=client_info(client, info.message_model),
                            subscription_info=info,
                        )
                    )
        return described

    async def connections(
        self, namespace: str, group: str, topic: str
    ) -> Sequence[admin_pb2.ClientInfo]:
        """Return the live clients of a consumer group.

        Raises:
            RequestError: unknown names.
        """
        row = self._operations.consumer_group(namespace, group)
        clients = await self._clients(namespace, group, topic)
        return [client_info(client, _model(row)) for client in clients]

    async def delete(self, namespace: str, group: str, topic: str) -> None:
        """Delete the state of a consumer group on a topic.

        Raises:
            RequestError: unknown names, or PRECONDITION_FAILED, a live client subscribes.
        """
        group_row = self._operations.consumer_group(namespace, group)
        topic_row = self._operations.topic(namespace, topic)
        if clients := await self._clients(namespace, group, topic):
            raise RequestError(
                Code.PRECONDITION_FAILED,
                f"{len(clients)} live clients of {group} subscribe to {topic}, for instance "
                f"{clients[0].client_id}",
            )
        await self._operations.forget_subscription(group_row, topic_row)

    async def states(
        self, namespace: str, group: str, topics: Sequence[str]
    ) -> list[tuple[TopicRow, Sequence[storage_pb2.ConsumerQueueState]]]:
        """Return the progress of a consumer group on topics; none named: on all it consumes.

        Raises:
            RequestError: unknown names.
        """
        row = self._operations.consumer_group(namespace, group)
        if topics:
            rows = [self._operations.topic(namespace, topic) for topic in topics]
        else:
            rows = await self._operations.consumed_topics(row)
        return [
            (topic, await self._operations.consumer_states(row, topic, times=True))
            for topic in rows
        ]

    async def _clients(
        self, namespace: str, group: str, topic: str
    ) -> list[peer_pb2.ConnectedClient]:
        if not (group or topic):
            raise RequestError(Code.BAD_REQUEST, "name a consumer group or a topic")
        if group:
            self._operations.consumer_group(namespace, group)
        if topic:
            self._operations.topic(namespace, topic)
        wanted = peer_pb2.ListClientsRequest(namespace=namespace, consumer_group=group, topic=topic)
        # A producer's topics are no subscriptions.
        return [client for client in await self._peers.clients(wanted) if client.consumer_group]

    async def _stored_pairs(self, namespace: str, group: str, topic: str) -> list[_Pair]:
        """Return the pairs of consumer group and topic with state, live or not."""
        if not group:
            readers = await self._operations.stored_consumer_groups(
                self._operations.topic(namespace, topic)
            )
            return [(row.name, topic) for row in readers if row.namespace == namespace]
        stored = await self._operations.stored_topics(
            self._operations.consumer_group(namespace, group)
        )
        return [(group, consumed.name) for consumed in stored if topic in ("", consumed.name)]

    def _info(
        self, namespace: str, pair: _Pair, clients: Sequence[peer_pb2.ConnectedClient]
    ) -> admin_pb2.SubscriptionInfo:
        group, topic = pair
        row = self._view.consumer_group(namespace, group)
        info = admin_pb2.SubscriptionInfo(
            group=definition_pb2.Resource(resource_namespace=namespace, name=group),
            topic=definition_pb2.Resource(resource_namespace=namespace, name=topic),
            online=bool(clients),
            message_model=_model(row),
            subscription_consistency=True,
        )
        if clients:
            expressions = [client.subscriptions[topic] for client in clients]
            info.expression.CopyFrom(expressions[0])
            info.subscription_consistency = all(one == expressions[0] for one in expressions)
            info.last_update_timestamp.FromMilliseconds(max(one.heard_ms for one in clients))
        return info

    def accumulations(
        self, states: Sequence[tuple[TopicRow, Sequence[storage_pb2.ConsumerQueueState]]]
    ) -> admin_pb2.DescribeGroupAccumulationResponse:
        """Return how many messages wait for a consumer group, in all and per topic."""
        now_ms = self._clock.wall_ms()
        everything = [state for _, of_topic in states for state in of_topic]
        return admin_pb2.DescribeGroupAccumulationResponse(
            accumulation=_accumulation(everything, now_ms),
            topic_accumulation={
                topic.name: _accumulation(of_topic, now_ms) for topic, of_topic in states
            },
        )

    def time_spans(
        self, topic: TopicRow, states: Iterable[storage_pb2.ConsumerQueueState]
    ) -> list[admin_pb2.QueryTimeSpanResponse.QueueTimeSpan]:
        """Return the time spans of queues' messages, and the progress of consumption."""
        now_ms = self._clock.wall_ms()
        return [
            admin_pb2.QueryTimeSpanResponse.QueueTimeSpan(
                message_queue=self.public_queue(topic, state.queue),
                min_timestamp=state.min_time_ms,
                max_timestamp=state.last_store_time_ms,
                consume_timestamp=state.consumed_time_ms,
                delay_time_ms=max(now_ms - state.cursor_time_ms, 0) if state.cursor_time_ms else 0,
            )
            for state in states
        ]

    def public_queue(self, topic: TopicRow, queue: int) -> definition_pb2.MessageQueue:
        """Return a queue under its public name, as calls with an offset know it."""
        shown = definition_pb2.MessageQueue(
            topic=definition_pb2.Resource(resource_namespace=topic.namespace, name=topic.name),
            permission=definition_pb2.READ if topic.is_dead_letter else definition_pb2.READ_WRITE,
        )
        for home in self._view.homes(topic):
            if queue in home.queues:
                shown.id = list(home.queues).index(queue)
                shown.broker.name = home.broker_name
        return shown


def client_info(
    client: peer_pb2.ConnectedClient, model: admin_pb2.MessageModel.ValueType
) -> admin_pb2.ClientInfo:
    """Return a client as RocketMQ's Admin service shows it."""
    return admin_pb2.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=enum_name(definition_pb2.Language, client.language),
        hostname=client.hostname,
        egress_ip=client.address,
        message_model=model,
    )


def _model(group: meta_pb2.ConsumerGroup | None) -> admin_pb2.MessageModel.ValueType:
    if group is None:
        return admin_pb2.MESSAGE_MODEL_UNSPECIFIED
    return admin_pb2.BROADCASTING if group.broadcast else admin_pb2.CLUSTERING


def in_namespace(caller_namespace: str, *resources: definition_pb2.Resource) -> Name:
    """Return (namespace, name) of the first resource; the others must be of the same namespace.

    Raises:
        RequestError: BAD_REQUEST.
    """
    first, *others = [
        (resource.resource_namespace or caller_namespace, resource.name) for resource in resources
    ]
    if any(other[0] != first[0] for other in others if other[1]):
        raise RequestError(Code.BAD_REQUEST, "topic and consumer group are of two namespaces")
    return first


def _accumulation(
    states: Iterable[storage_pb2.ConsumerQueueState], now_ms: int
) -> admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation:
    total = admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation()
    oldest_ms = 0
    for state in states:
        ready = max(state.next_offset - state.head, 0) + state.waiting
        total.inflight_messages += state.in_flight
        total.ready_messages += ready
        total.accumulation += ready + state.in_flight
        total.last_consume_timestamp = max(total.last_consume_timestamp, state.consumed_time_ms)
        if ready and state.cursor_time_ms:
            oldest_ms = min(oldest_ms or state.cursor_time_ms, state.cursor_time_ms)
    if oldest_ms:
        total.deliver_delay_time.FromMilliseconds(max(now_ms - oldest_ms, 0))
    return total
