"""Rules of the services that RocketMQ defines, with the rights that its own server asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from strata_broker.access.principals import Principal, send_right, topic_target
from strata_broker.access.rules import (
    Asked,
    Need,
    Rule,
    Rules,
    keep,
    of_cluster,
    of_group,
    of_known_topic,
    of_topic,
    shared_namespace,
)
from strata_broker.metadata.requests import Caller
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import BadHandleError

_QueueRequest = (
    service_pb2.PullMessageRequest | service_pb2.UpdateOffsetRequest | service_pb2.GetOffsetRequest
)
_LeaseRequest = (
    service_pb2.AckMessageRequest
    | service_pb2.ChangeInvisibleDurationRequest
    | service_pb2.ForwardMessageToDeadLetterQueueRequest
    | service_pb2.QueryAssignmentRequest
    | service_pb2.SyncLiteSubscriptionRequest
)
_GroupRequest = (
    admin_pb2.DeleteSubscriptionRequest
    | admin_pb2.DescribeGroupAccumulationRequest
    | admin_pb2.ListConsumerConnectionRequest
    | admin_pb2.QueryTimeSpanRequest
    | admin_pb2.ResetGroupOffsetRequest
)
_Subscriptions = admin_pb2.ListSubscriptionRequest | admin_pb2.DescribeSubscriptionRequest


# Messages ---------------------------------------------------------------------------------------


def _query_route(request: service_pb2.QueryRouteRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.PUB, Action.SUB)


def _send(request: service_pb2.SendMessageRequest, asked: Asked) -> Iterable[Need]:
    for message in request.messages:
        kind, name, action = send_right(asked.caller.name_of(message.topic))
        yield Need(kind, name, (action,))


def _receive(request: service_pb2.ReceiveMessageRequest, asked: Asked) -> Iterable[Need]:
    yield of_group(asked.caller.name_of(request.group), Action.SUB)
    yield of_topic(asked.caller.name_of(request.message_queue.topic), Action.SUB)


def _lease(request: _LeaseRequest, asked: Asked) -> Iterable[Need]:
    yield of_group(asked.caller.name_of(request.group), Action.SUB)
    yield of_topic(asked.caller.name_of(request.topic), Action.SUB)


def _queue(request: _QueueRequest, asked: Asked) -> Iterable[Need]:
    yield of_group(asked.caller.name_of(request.group), Action.SUB)
    yield of_topic(asked.caller.name_of(request.message_queue.topic), Action.SUB)


def _query_offset(request: service_pb2.QueryOffsetRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.message_queue.topic), Action.SUB)


def _group_if_named(
    request: service_pb2.HeartbeatRequest | service_pb2.NotifyClientTerminationRequest,
    asked: Asked,
) -> Iterable[Need]:
    if request.group.name:
        yield of_group(asked.caller.name_of(request.group), Action.SUB)


def _of_sender(
    request: service_pb2.EndTransactionRequest | service_pb2.RecallMessageRequest, asked: Asked
) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.PUB)


def settings_needs(settings: definition_pb2.Settings, caller: Caller) -> Iterable[Need]:
    """Return the rights that a client's settings take."""
    if settings.WhichOneof("pub_sub") == "subscription":
        subscription = settings.subscription
        if subscription.group.name:
            yield of_group(caller.name_of(subscription.group), Action.SUB)
        for entry in subscription.subscriptions:
            yield of_topic(caller.name_of(entry.topic), Action.SUB)
        return
    for topic in settings.publishing.topics:
        yield of_topic(caller.name_of(topic), Action.PUB)


def _telemetry(request: service_pb2.TelemetryCommand, asked: Asked) -> Iterable[Need]:
    if request.WhichOneof("command") == "settings":
        yield from settings_needs(request.settings, asked.caller)


def _tells_producer(
    command: service_pb2.TelemetryCommand, asked: Asked, principal: Principal
) -> bool:
    """Whether a producer may be asked about a transaction: the question shows the message.

    It is asked about every topic that it ever wrote, whatever its settings say.
    """
    if command.WhichOneof("command") != "recover_orphaned_transaction_command":
        return True
    try:
        handle = asked.handles.read_pending(
            command.recover_orphaned_transaction_command.transaction_id
        )
    except BadHandleError:
        # The keys changed since the question was made; storage has it asked again.
        return False
    topic = asked.view.topic_by_id(handle.topic_id)
    if topic is None:
        return False
    return principal.may(*topic_target((topic.namespace, topic.name)), Action.PUB)


MESSAGING_RULES: Rules = {
    "QueryRoute": Rule(_query_route),
    "Heartbeat": Rule(_group_if_named),
    "SendMessage": Rule(_send),
    "QueryAssignment": Rule(_lease),
    "ReceiveMessage": Rule(_receive),
    "AckMessage": Rule(_lease),
    "ForwardMessageToDeadLetterQueue": Rule(_lease),
    "PullMessage": Rule(_queue),
    "UpdateOffset": Rule(_queue),
    "GetOffset": Rule(_queue),
    "QueryOffset": Rule(_query_offset),
    "EndTransaction": Rule(_of_sender),
    "Telemetry": Rule(_telemetry, tells=_tells_producer),
    # The servicer, which knows the clients, decides who may end another client.
    "NotifyClientTermination": Rule(_group_if_named),
    "ChangeInvisibleDuration": Rule(_lease),
    "RecallMessage": Rule(_of_sender),
    "SyncLiteSubscription": Rule(_lease),
}


# Operators --------------------------------------------------------------------------------------


def _topic_get(request: admin_pb2.DescribeTopicStatusRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.GET)


def _topic_route(request: admin_pb2.GetTopicRouteRequest, asked: Asked) -> Iterable[Need]:
    name = asked.caller.name_of(request.topic)
    yield of_topic(name, Action.GET, Action.PUB, Action.SUB)


def _topic_messages(request: admin_pb2.ListMessageRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.SUB)


def _admin_send(request: admin_pb2.AdminSendMessageRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.PUB)


def _group_get(request: _GroupRequest, asked: Asked) -> Iterable[Need]:
    yield from _group_and_topics(request, asked, Action.GET)


def _group_update(request: _GroupRequest, asked: Asked) -> Iterable[Need]:
    yield from _group_and_topics(request, asked, Action.UPDATE)


def _group_and_topics(request: _GroupRequest, asked: Asked, action: Action) -> Iterable[Need]:
    match request:
        case admin_pb2.DescribeGroupAccumulationRequest() | admin_pb2.QueryTimeSpanRequest():
            topics: Sequence[definition_pb2.Resource] = request.topics
        case _:
            topics = (request.topic,)
    namespace = shared_namespace(asked.caller, request.group, *topics)
    yield of_group((namespace, request.group.name), action)
    for topic in topics:
        if topic.name:
            yield of_known_topic((namespace, topic.name))


def _subscriptions(request: _Subscriptions, asked: Asked) -> Iterable[Need]:
    namespace = shared_namespace(asked.caller, request.group, request.topic)
    if not request.group.name:
        yield of_topic((namespace, request.topic.name), Action.GET)
        return
    yield of_group((namespace, request.group.name), Action.GET)
    if request.topic.name:
        yield of_known_topic((namespace, request.topic.name))


def _running_info(request: admin_pb2.GetConsumerRunningInfoRequest, asked: Asked) -> Iterable[Need]:
    yield of_group(asked.caller.name_of(request.group), Action.GET)


def _stack_trace(request: admin_pb2.PrintThreadStackTraceRequest, asked: Asked) -> Iterable[Need]:
    """A command to one client: of the named consumer group, or of any."""
    if request.group.name:
        yield of_group(asked.caller.name_of(request.group), Action.UPDATE)
    else:
        yield Need(ResourceKind.CLUSTER, ("", "clients"), (Action.UPDATE,))


def _verify(request: admin_pb2.VerifyMessageRequest, asked: Asked) -> Iterable[Need]:
    yield of_topic(asked.caller.name_of(request.topic), Action.SUB)
    if request.group.name:
        yield of_group(asked.caller.name_of(request.group), Action.UPDATE)
    else:
        yield Need(ResourceKind.CLUSTER, ("", "clients"), (Action.UPDATE,))


def _hide_subscriptions(response: admin_pb2.ListSubscriptionResponse, principal: Principal) -> None:
    keep(response.subscription_info, lambda info: _sees_subscription(info, principal))


def _hide_client_subscriptions(
    response: admin_pb2.DescribeSubscriptionResponse, principal: Principal
) -> None:
    keep(
        response.client_subscription_info,
        lambda one: _sees_subscription(one.subscription_info, principal),
    )


def _sees_subscription(info: admin_pb2.SubscriptionInfo, principal: Principal) -> bool:
    return principal.may_see(ResourceKind.GROUP, (info.group.resource_namespace, info.group.name))


ROCKETMQ_ADMIN_RULES: Rules = {
    "ChangeLogLevel": Rule(of_cluster("config", Action.UPDATE)),
    "DescribeTopicStatus": Rule(_topic_get),
    "ListSubscription": Rule(_subscriptions, _hide_subscriptions),
    "DescribeSubscription": Rule(_subscriptions, _hide_client_subscriptions),
    "DeleteSubscription": Rule(_group_update),
    "DescribeGroupAccumulation": Rule(_group_get),
    "ListConsumerConnection": Rule(_group_get),
    "ResetGroupOffset": Rule(_group_update),
    "QueryMessage": Rule(_topic_messages),
    "PrintThreadStackTrace": Rule(_stack_trace),
    "VerifyMessage": Rule(_verify),
    "AdminSendMessage": Rule(_admin_send),
    "GetConsumerRunningInfo": Rule(_running_info),
    "GetTopicRoute": Rule(_topic_route),
    "QueryTimeSpan": Rule(_group_get),
    "GetProxyRuntimeStats": Rule(of_cluster("stats", Action.GET)),
}
