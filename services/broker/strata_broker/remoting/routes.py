"""The calls of a nameserver: routes, the cluster, and polite refusals."""

from __future__ import annotations

from collections.abc import Mapping

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.clients.provision import Provisioner, topic_not_found
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller, use_of
from strata_broker.remoting.addresses import RemotingAddresses, broker_name_of, broker_names
from strata_broker.remoting.answers import RemotingRefusal, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.queue_ids import queue_numbers
from strata_mq.access import Action
from strata_mq.requests import RETRY_PREFIX, Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode

_READ, _READ_WRITE = 4, 6
_MASTER = "0"
_REPLY_SUFFIX = "_REPLY_TOPIC"


class RemotingRoutes:
    """See the module docstring.

    Attributes:
        view: knows topics and queues.
        reply_topic: to which consumers send replies; no topic of that name is stored.

    Args:
        face: the broker's handlers.
        provisioner: finds topics, and makes the topics of retries.
        addresses: of the brokers.
        cluster_name: in routes.
    """

    def __init__(
        self,
        face: MessagingFace,
        provisioner: Provisioner,
        addresses: RemotingAddresses,
        *,
        cluster_name: str,
    ) -> None:
        self._face = face
        self.view = provisioner.view
        self._provisioner = provisioner
        self._addresses = addresses
        self._cluster_name = cluster_name
        self.reply_topic = f"{cluster_name}{_REPLY_SUFFIX}"

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_KV_CONFIG: self.kv_config,
            RequestCode.REGISTER_BROKER: self.foreign_broker,
            RequestCode.UNREGISTER_BROKER: self.foreign_broker,
        }

    async def route(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the queues of a topic.

        Raises:
            RequestError: TOPIC_NOT_FOUND; the caller may not use the topic.
        """
        name = exchange.request.text("topic")
        if name == self.reply_topic:
            exchange.require_topic(name, Action.PUB)
            return with_json(exchange.request, self._reply_route())
        topic = await self.topic(exchange, name)
        return with_json(exchange.request, self._route_of(topic))

    async def topic(self, exchange: Exchange, name: str) -> TopicRow:
        """Return a topic that a client may use; made if it is unknown and that is allowed.

        Raises:
            RequestError: TOPIC_NOT_FOUND; the caller may not use the topic.
        """
        await self._ensure_retry_topic(name, exchange)
        query = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=name))
        caller = exchange.caller()
        try:
            await self._face.call("QueryRoute", query, service_pb2.QueryRouteResponse, caller)
        except RequestError as bad:
            if bad.code is Code.ILLEGAL_TOPIC:
                # Clients ask for the topic of defaults, TBW102, when they find no other.
                raise topic_not_found(name) from bad
            raise
        return self._provisioner.topic("", name)

    async def cluster(self, exchange: Exchange) -> RemotingCommand:
        """Answer with all broker names and the addresses behind them."""
        table = {name: self._broker(name) for name in broker_names()}
        shown = {
            "brokerAddrTable": table,
            "clusterAddrTable": {self._cluster_name: list(table)},
        }
        return with_json(exchange.request, shown)

    async def kv_config(self, exchange: Exchange) -> RemotingCommand:
        """Answer as a nameserver without such an entry: nobody can make any here.

        Raises:
            RemotingRefusal: always.
        """
        request = exchange.request
        namespace, key = request.text("namespace"), request.text("key")
        raise RemotingRefusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {namespace} Key: {key}",
        )

    async def foreign_broker(self, exchange: Exchange) -> RemotingCommand:
        """Refuse a broker of RocketMQ.

        Raises:
            RemotingRefusal: always.
        """
        raise RemotingRefusal(
            ResponseCode.NO_PERMISSION,
            "this is a StrataMQ cluster: brokers of RocketMQ cannot join it",
        )

    def shown(self, topic: str, queue_count: int, permission: int = _READ_WRITE) -> object:
        """Return a route as TopicRouteData.

        Args:
            topic: its name.
            queue_count: to read from and to write to.
            permission: RocketMQ's bits.
        """
        name = broker_name_of(topic)
        queue = {
            "brokerName": name,
            "perm": permission,
            "readQueueNums": queue_count,
            "topicSysFlag": 0,
            "writeQueueNums": queue_count,
        }
        return {
            "brokerDatas": [self._broker(name)],
            "filterServerTable": {},
            "queueDatas": [queue],
        }

    def _reply_route(self) -> object:
        """Return the route of replies: any broker takes them, and producers choose in turn."""
        names = broker_names()
        queue = {"perm": _READ_WRITE, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
        return {
            "brokerDatas": [self._broker(name) for name in names],
            "filterServerTable": {},
            "queueDatas": [{"brokerName": name, **queue} for name in names],
        }

    def _route_of(self, topic: TopicRow) -> object:
        count = len(queue_numbers(self.view, topic))
        return self.shown(topic.name, count, _READ if topic.is_dead_letter else _READ_WRITE)

    def _broker(self, name: str) -> dict[str, object]:
        return {
            "brokerAddrs": {_MASTER: self._addresses.of(name)},
            "brokerName": name,
            "cluster": self._cluster_name,
        }

    async def _ensure_retry_topic(self, name: str, exchange: Exchange) -> None:
        """Make a consumer group's topic of retries when its consumers first ask for it."""
        if not name.startswith(RETRY_PREFIX) or self.view.topic("", name) is not None:
            return
        group = name.removeprefix(RETRY_PREFIX)
        caller = exchange.caller(group)
        await self._face.call(
            "Heartbeat",
            service_pb2.HeartbeatRequest(
                group=definition_pb2.Resource(name=group), client_type=definition_pb2.PULL_CONSUMER
            ),
            service_pb2.HeartbeatResponse,
            caller,
        )
        client = Caller(caller.metadata["x-mq-client-id"], "", peer=caller.peer)
        await self._provisioner.retry_topic(group, use_of(client, "Heartbeat"))
