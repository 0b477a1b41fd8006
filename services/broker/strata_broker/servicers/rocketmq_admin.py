"""`apache.rocketmq.v2.Admin`: topics, subscriptions, consumer groups, and the broker itself.

The operations are those of `strata.admin.v1`, in RocketMQ's shapes and codes. RPCs about messages
and commands to clients are in `rocketmq_admin_clients`.
"""

from __future__ import annotations

import json
from typing import Any

from apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2 as strata_admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.requests import Caller, milliseconds
from strata_broker.operators.runtime_stats import RuntimeStats
from strata_broker.operators.subscriptions import Subscriptions, in_namespace
from strata_broker.operators.topics import Operations
from strata_mq.requests import Code, RequestError
from strata_runtime import logs

_LOG_LEVELS = {
    admin_pb2.ChangeLogLevelRequest.TRACE: "debug",
    admin_pb2.ChangeLogLevelRequest.DEBUG: "debug",
    admin_pb2.ChangeLogLevelRequest.INFO: "info",
    admin_pb2.ChangeLogLevelRequest.WARN: "warning",
    admin_pb2.ChangeLogLevelRequest.ERROR: "error",
}

_MESSAGE_TYPES = {
    meta_pb2.TOPIC_TYPE_NORMAL: definition_pb2.NORMAL,
    meta_pb2.TOPIC_TYPE_FIFO: definition_pb2.FIFO,
    meta_pb2.TOPIC_TYPE_DELAY: definition_pb2.DELAY,
    meta_pb2.TOPIC_TYPE_TRANSACTION: definition_pb2.TRANSACTION,
    meta_pb2.TOPIC_TYPE_LITE: definition_pb2.LITE,
    meta_pb2.TOPIC_TYPE_PRIORITY: definition_pb2.PRIORITY,
}

# RocketMQ's permission bits: 4 read, 2 write.
_PERMISSIONS = {definition_pb2.READ: 4, definition_pb2.WRITE: 2, definition_pb2.READ_WRITE: 6}
_DESCRIPTION_ATTRIBUTE = "description"


class RocketmqAdminServicer:
    """See the module docstring."""

    def __init__(
        self,
        operations: Operations,
        subscriptions: Subscriptions,
        routes: Routes,
        *,
        sessions: Sessions,
        stats: RuntimeStats,
        node_id: str,
        version: str,
    ) -> None:
        self._operations = operations
        self._subscriptions = subscriptions
        self._routes = routes
        self._sessions = sessions
        self._stats = stats
        self._node_id = node_id
        self._version = version

    async def change_log_level(
        self, _: Caller, request: admin_pb2.ChangeLogLevelRequest
    ) -> admin_pb2.ChangeLogLevelResponse:
        """Change this broker's log level until its next start."""
        level = _LOG_LEVELS.get(request.level)
        if level is None:
            return admin_pb2.ChangeLogLevelResponse(remark=f"unknown level {request.level}")
        before = logs.set_level(level)
        remark = f"log level of {self._node_id} was {before} and is {level}"
        return admin_pb2.ChangeLogLevelResponse(remark=remark)

    async def describe_topic_status(
        self, caller: Caller, request: admin_pb2.DescribeTopicStatusRequest
    ) -> admin_pb2.DescribeTopicStatusResponse:
        """Describe a topic."""
        topic = self._operations.topic(*caller.name_of(request.topic)).parsed()
        response = admin_pb2.DescribeTopicStatusResponse(
            topic_message_type=_MESSAGE_TYPES.get(
                topic.type, definition_pb2.MESSAGE_TYPE_UNSPECIFIED
            ),
            tags=topic.attributes,
        )
        response.create_timestamp.FromMilliseconds(topic.created_at_ms)
        if _DESCRIPTION_ATTRIBUTE in topic.attributes:
            response.description = topic.attributes[_DESCRIPTION_ATTRIBUTE]
        return response

    async def list_subscription(
        self, caller: Caller, request: admin_pb2.ListSubscriptionRequest
    ) -> admin_pb2.ListSubscriptionResponse:
        """List subscriptions of a consumer group, or of a topic."""
        namespace = _namespace(caller, request.group, request.topic)
        found = await self._subscriptions.find(namespace, request.group.name, request.topic.name)
        return admin_pb2.ListSubscriptionResponse(subscription_info=found)

    async def describe_subscription(
        self, caller: Caller, request: admin_pb2.DescribeSubscriptionRequest
    ) -> admin_pb2.DescribeSubscriptionResponse:
        """List the subscriptions of every client."""
        namespace = _namespace(caller, request.group, request.topic)
        found = await self._subscriptions.describe(
            namespace, request.group.name, request.topic.name
        )
        return admin_pb2.DescribeSubscriptionResponse(client_subscription_info=found)

    async def delete_subscription(
        self, caller: Caller, request: admin_pb2.DeleteSubscriptionRequest
    ) -> admin_pb2.DeleteSubscriptionResponse:
        """Delete a consumer group's state on a topic; the group must have no live client."""
        namespace = _namespace(caller, request.group, request.topic)
        await self._subscriptions.delete(namespace, request.group.name, request.topic.name)
        return admin_pb2.DeleteSubscriptionResponse()

    async def describe_group_accumulation(
        self, caller: Caller, request: admin_pb2.DescribeGroupAccumulationRequest
    ) -> admin_pb2.DescribeGroupAccumulationResponse:
        """Show how many messages wait for a consumer group, in all and per topic."""
        if request.lite_topic:
            raise RequestError(Code.UNSUPPORTED, "lite topics are not supported yet")
        namespace = _namespace(caller, request.group, *request.topics)
        states = await self._subscriptions.states(
            namespace, request.group.name, [topic.name for topic in request.topics]
        )
        return self._subscriptions.accumulations(states)

    async def list_consumer_connection(
        self, caller: Caller, request: admin_pb2.ListConsumerConnectionRequest
    ) -> admin_pb2.ListConsumerConnectionResponse:
        """List the live clients of a consumer group."""
        if request.liteTopic:
            raise RequestError(Code.UNSUPPORTED, "lite topics are not supported yet")
        namespace = _namespace(caller, request.group, request.topic)
        clients = await self._subscriptions.connections(
            namespace, request.group.name, request.topic.name
        )
        return admin_pb2.ListConsumerConnectionResponse(client_info=clients)

    async def reset_group_offset(
        self, caller: Caller, request: admin_pb2.ResetGroupOffsetRequest
    ) -> admin_pb2.ResetGroupOffsetResponse:
        """Move a consumer group's cursors on a topic to a time."""
        if not request.HasField("reset_timestamp"):
            raise RequestError(Code.BAD_REQUEST, "a reset names a time")
        reset = strata_admin_pb2.ResetConsumerGroupRequest(
            namespace=_namespace(caller, request.group, request.topic),
            name=request.group.name,
            topic=request.topic.name,
            time_ms=max(milliseconds(request.reset_timestamp), 0),
        )
        await self._operations.reset_consumer_group(reset)
        return admin_pb2.ResetGroupOffsetResponse()

    async def get_topic_route(
        self, caller: Caller, request: admin_pb2.GetTopicRouteRequest
    ) -> admin_pb2.GetTopicRouteResponse:
        """Show a topic's route as the JSON that RocketMQ's tools know."""
        topic = self._operations.topic(*caller.name_of(request.topic))
        route = service_pb2.QueryRouteResponse.FromString(self._routes.route(topic))
        data = json.dumps(_route_data(route), separators=(",", ":"))
        return admin_pb2.GetTopicRouteResponse(topic_route_data=data)

    async def query_time_span(
        self, caller: Caller, request: admin_pb2.QueryTimeSpanRequest
    ) -> admin_pb2.QueryTimeSpanResponse:
        """Show the time spans of queues' messages, and the progress of consumption."""
        namespace = _namespace(caller, request.group, *request.topics)
        states = await self._subscriptions.states(
            namespace, request.group.name, [topic.name for topic in request.topics]
        )
        spans = [
            span
            for topic, of_topic in states
            for span in self._subscriptions.time_spans(topic, of_topic)
        ]
        return admin_pb2.QueryTimeSpanResponse(queue_time_span_list=spans)

    async def get_proxy_runtime_stats(
        self, _: Caller, __: admin_pb2.GetProxyRuntimeStatsRequest
    ) -> admin_pb2.GetProxyRuntimeStatsResponse:
        """Show the load of this broker."""
        rates = self._stats.rates()
        return admin_pb2.GetProxyRuntimeStatsResponse(
            proxy_name=self._node_id,
            version=self._version,
            in_tps=rates.messages_in,
            out_tps=rates.messages_out,
            connections=len(self._sessions),
            producers=self._sessions.count(consumers=False),
            consumers=self._sessions.count(consumers=True),
        )


def _namespace(caller: Caller, *resources: definition_pb2.Resource) -> str:
    """Return the one namespace of a consumer group and its topics."""
    named = [resource for resource in resources if resource.name]
    return in_namespace(caller.namespace, *(named or [definition_pb2.Resource()]))[0]


def _route_data(route: service_pb2.QueryRouteResponse) -> dict[str, Any]:
    """Return a route as the remoting protocol's TopicRouteData: counts instead of queues."""
    counts: dict[str, int] = {}
    for queue in route.message_queues:
        counts[queue.broker.name] = counts.get(queue.broker.name, 0) + 1
    brokers = {queue.broker.name: queue for queue in route.message_queues}
    return {
        "orderTopicConf": "",
        "queueDatas": [
            {
                "brokerName": name,
                "readQueueNums": counts[name],
                "writeQueueNums": counts[name],
                "perm": _PERMISSIONS.get(queue.permission, 0),
                "topicSysFlag": 0,
            }
            for name, queue in sorted(brokers.items())
        ],
        "brokerDatas": [
            {
                "cluster": "",
                "brokerName": name,
                "brokerAddrs": {
                    str(queue.broker.id): f"{address.host}:{address.port}"
                    for address in queue.broker.endpoints.addresses
                },
            }
            for name, queue in sorted(brokers.items())
        ],
        "filterServerTable": {},
    }
