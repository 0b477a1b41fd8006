"""Cells of every RPC, and those of the RPCs that only look things up."""

from __future__ import annotations

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from tests.integration.broker.code_matrix import BEYOND, MATRIX, NOT_PRODUCED, Cell
from tests.integration.broker.matrix_calls import (
    GROUP,
    METADATA,
    TOPIC,
    Act,
    Calls,
    Status,
    assign,
    edited,
    valid_request,
)

NO_ROUTE = "CODE: 17  DESC: No topic route info in name server for the topic: "
NO_TOPIC = f"{NO_ROUTE}nowhere"
BAD_TOPIC = (
    "The specified topic[bad topic!] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
)
BAD_GROUP = (
    "the specified group[bad group!] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
)
NEW_NAMES = iter(f"new-{number}" for number in range(1_000))

# Where a request names its topic and its consumer group.
TOPIC_PATHS = {
    "QueryRoute": "topic.name",
    "QueryAssignment": "topic.name",
    "SendMessage": "messages.0.topic.name",
    "ReceiveMessage": "message_queue.topic.name",
    "AckMessage": "topic.name",
    "ForwardMessageToDeadLetterQueue": "topic.name",
    "ChangeInvisibleDuration": "topic.name",
    "EndTransaction": "topic.name",
    "RecallMessage": "topic.name",
    "PullMessage": "message_queue.topic.name",
    "UpdateOffset": "message_queue.topic.name",
    "QueryOffset": "message_queue.topic.name",
    "GetOffset": "message_queue.topic.name",
}


def in_namespace(rpc: str, path: str, how: str) -> Act:
    """Return the act of a call for a topic that only the default namespace has."""
    if how == "metadata":
        metadata = (*METADATA, ("x-mq-namespace", "other"))
        return edited(rpc, assign(path, "limited"), metadata=metadata)

    def edit(request: Message) -> None:
        assign(path, "limited")(request)
        assign(path.removesuffix("name") + "resource_namespace", "other")(request)

    return edited(rpc, edit)


def with_settings(settings: definition_pb2.Settings) -> Act:
    """Return the act of opening a settings stream and reading its first frame."""

    async def act(calls: Calls) -> Status:
        stream = calls.port.messaging.Telemetry(metadata=METADATA)
        await stream.write(service_pb2.TelemetryCommand(settings=settings))
        frame = await stream.read()
        stream.cancel()
        assert isinstance(frame, service_pb2.TelemetryCommand)
        return frame.status

    return act


def subscribed_by(kind: definition_pb2.FilterType.ValueType, text: str) -> definition_pb2.Settings:
    """Settings of a consumer with one subscription."""
    settings = definition_pb2.Settings(client_type=definition_pb2.PUSH_CONSUMER)
    settings.subscription.group.name = GROUP
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = TOPIC
    entry.expression.type = kind
    entry.expression.expression = text
    return settings


def without_client_id(rpc: str) -> Act:
    """Return the act of a call that does not say who calls."""
    return lambda calls: calls.status(rpc, metadata=())


def while_another_call_waits(rpc: str) -> Act:
    """Return the act of a call beyond the one call that the tight node has under way."""

    async def act(calls: Calls) -> Status:
        request = await calls.held_lease_request("ChangeInvisibleDuration")
        async with calls.faults.hold("ChangeInvisible"):
            waiting = calls.port.messaging.ChangeInvisibleDuration(request, metadata=OTHER_CLIENT)
            await calls.faults.until_held("ChangeInvisible")
            status = await calls.status(rpc)
        await waiting
        return status

    return act


OTHER_CLIENT = (("x-mq-client-id", "other"),)


def for_a_new_topic(rpc: str, outcome: meta_pb2.MetaOutcome.ValueType | None) -> Act:
    """Return the act of a call that makes its topic; the nameserver refuses, or (None) sleeps."""

    async def act(calls: Calls) -> Status:
        request = valid_request(rpc)
        request.topic.name = next(NEW_NAMES)
        if outcome is not None:
            calls.faults.refuse("CreateTopic", outcome)
            return await calls.status(rpc, request)
        async with calls.faults.hold("CreateTopic"):
            return await calls.status(rpc, request)

    return act


def with_access_point(host: str, port: int, rpc: str) -> Act:
    """Return the act of a call by a client that was configured with an address."""

    def edit(request: service_pb2.QueryRouteRequest) -> None:
        request.endpoints.scheme = definition_pb2.IPv4
        request.endpoints.addresses.add(host=host, port=port)

    return edited(rpc, edit)


CELLS = [
    *(
        Cell(rpc, "CLIENT_ID_REQUIRED", without_client_id(rpc), "client id cannot be empty")
        for rpc in MATRIX
    ),
    *(
        Cell(rpc, "TOO_MANY_REQUESTS", while_another_call_waits(rpc), "flow limit", "tight")
        for rpc in MATRIX
        if rpc not in ("SendMessage", "ReceiveMessage", "AckMessage", "PullMessage")
    ),
    *(
        Cell(rpc, "ILLEGAL_TOPIC", edited(rpc, assign(path, "bad topic!")), BAD_TOPIC)
        for rpc, path in TOPIC_PATHS.items()
        if "ILLEGAL_TOPIC" in MATRIX[rpc]
    ),
    *(
        Cell(rpc, "TOPIC_NOT_FOUND", edited(rpc, assign(path, "nowhere")), NO_TOPIC)
        for rpc, path in TOPIC_PATHS.items()
        if "TOPIC_NOT_FOUND" in MATRIX[rpc]
    ),
    *(
        Cell(rpc, "TOPIC_NOT_FOUND", in_namespace(rpc, path, how), f"{NO_ROUTE}limited")
        for rpc, path in TOPIC_PATHS.items()
        for how in ("resource", "metadata")
        if "TOPIC_NOT_FOUND" in MATRIX[rpc]
    ),
    Cell(
        "QueryRoute",
        "BAD_REQUEST",
        edited("QueryRoute", assign("topic.resource_namespace", "no such namespace")),
        "the specified namespace[no such namespace] contains illegal characters*",
        "tight",
    ),
    *(
        Cell(
            rpc,
            "ILLEGAL_CONSUMER_GROUP",
            edited(rpc, assign("group.name", "bad group!")),
            BAD_GROUP,
        )
        for rpc, codes in MATRIX.items()
        if "ILLEGAL_CONSUMER_GROUP" in codes | BEYOND.get(rpc, frozenset())
        and (rpc, "ILLEGAL_CONSUMER_GROUP") not in NOT_PRODUCED
    ),
    *(
        Cell(
            rpc,
            "PROXY_TIMEOUT",
            for_a_new_topic(rpc, None),
            "cannot create topic new-*",
            "tight",
        )
        for rpc in ("QueryRoute", "QueryAssignment")
    ),
    *(
        Cell(
            rpc,
            "INTERNAL_SERVER_ERROR",
            for_a_new_topic(rpc, meta_pb2.META_OUTCOME_CONFLICT),
            "cannot create topic new-*",
            "tight",
        )
        for rpc in ("QueryRoute", "QueryAssignment")
    ),
    *(
        Cell(
            rpc,
            "ILLEGAL_ACCESS_POINT",
            with_access_point(host, port, rpc),
            f"no access point has the address [{host}:{port}]",
        )
        for rpc in ("QueryRoute", "QueryAssignment")
        for host, port in (("", 8081), ("127.0.0.1", 0), ("127.0.0.1", 1 << 16))
    ),
    *(Cell(rpc, "OK", edited(rpc, lambda _: None), "OK") for rpc in ("QueryRoute", "Heartbeat")),
    Cell("QueryRoute", "OK", with_access_point("::1", 8081, "QueryRoute"), "OK"),
    Cell("QueryAssignment", "OK", edited("QueryAssignment", lambda _: None), "OK"),
    Cell("NotifyClientTermination", "OK", edited("NotifyClientTermination", lambda _: None), "OK"),
    Cell(
        "QueryAssignment",
        "FORBIDDEN",
        edited("QueryAssignment", assign("topic.name", "homeless")),
        "no readable queue",
    ),
    Cell("Telemetry", "OK", with_settings(subscribed_by(definition_pb2.TAG, "a||b")), "OK"),
    Cell(
        "Telemetry",
        "ILLEGAL_FILTER_EXPRESSION",
        with_settings(subscribed_by(definition_pb2.SQL, "a >")),
    ),
    Cell(
        "SyncLiteSubscription",
        "ILLEGAL_TOPIC",
        edited("SyncLiteSubscription", assign("topic.name", TOPIC)),
        f"topic {TOPIC} is not of type LITE",
    ),
    Cell(
        "Heartbeat",
        "UNRECOGNIZED_CLIENT_TYPE",
        lambda calls: calls.status(
            "Heartbeat", service_pb2.HeartbeatRequest.FromString(b"\x10\x63")
        ),
        "UNRECOGNIZED_CLIENT_TYPE",
    ),
]
