"""A fuzzer over every RPC: whatever comes, the node serves on, in bounded memory, with legal codes.

It runs for STRATA_TEST_FUZZ_S seconds (20); STRATA_TEST_SEED repeats the requests of a run, though
not their interleaving.
"""

import asyncio
import os
import random
import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin
from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata.admin.v1 import admin_pb2 as admin
from strata.admin.v1 import admin_pb2_grpc
from strata.meta.v1 import meta_pb2
from tests.e2e.mutator import Mutator
from tests.e2e.process import resident_bytes
from tests.e2e.standalone import Standalone
from tests.e2e.test_bad_input import TOPIC, abuse, garbage, good_client
from tests.integration.broker.code_matrix import BEYOND, MATRIX

DURATION_S = float(os.environ.get("STRATA_TEST_FUZZ_S", "20"))
WORKERS = 8
CALL_TIMEOUT_S = 15.0
STREAM_FRAMES = 3
STREAM_TIMEOUT_S = 2.0
GROWTH_LIMIT_BYTES = 250_000_000

MESSAGING = service.DESCRIPTOR.services_by_name["MessagingService"]
ADMIN = admin.DESCRIPTOR.services_by_name["AdminService"]
ROCKETMQ_ADMIN = rocketmq_admin.DESCRIPTOR.services_by_name["Admin"]
TOPICS = {
    "fuzz": "NORMAL",
    "fuzz-fifo": "FIFO",
    "fuzz-mixed": "MIXED",
    "fuzz-delay": "DELAY",
    "fuzz-half": "TRANSACTION",
}
NAMES = [*TOPICS, "fuzz-group", "strata-1", "strata-2", "nowhere"]

# Waits are short so that many requests fit; names that are made cannot fill the node.
ENVIRONMENT = {
    "STRATA_RECEIVE_MIN_POLLING_MS": "10",
    "STRATA_RECEIVE_MAX_POLLING_MS": "1000",
    "STRATA_QUOTAS_NAMESPACE_CONSUMER_GROUPS": "50",
    "STRATA_QUOTAS_NAMESPACE_TOPICS": "200",
}

_FAULTS = frozenset(("INTERNAL_SERVER_ERROR", "INTERNAL_ERROR", "CODE_UNSPECIFIED"))
_ANY_RPC = frozenset(
    (
        "OK",
        "BAD_REQUEST",
        "TOO_MANY_REQUESTS",
        "CLIENT_ID_REQUIRED",
        "NOT_IMPLEMENTED",
        "REQUEST_HEADER_FIELDS_TOO_LARGE",
        "PAYLOAD_TOO_LARGE",
    )
)
_NONE: frozenset[str] = frozenset()
# RPCs that the matrix has no row for.
_OTHER = frozenset(
    (
        "ILLEGAL_TOPIC",
        "TOPIC_NOT_FOUND",
        "ILLEGAL_CONSUMER_GROUP",
        "MESSAGE_NOT_FOUND",
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        "INVALID_RECEIPT_HANDLE",
    )
)
_ADMIN_CODES = _OTHER | frozenset(
    (
        "UNSUPPORTED",
        "NOT_FOUND",
        "PRECONDITION_FAILED",
        "CONSUMER_GROUP_NOT_FOUND",
        "ILLEGAL_FILTER_EXPRESSION",
        "PROXY_TIMEOUT",
        *MATRIX["SendMessage"],
    )
)
_LEGAL_STATUSES = frozenset((grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED))
_LEGAL_ADMIN_STATUSES = _LEGAL_STATUSES | {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    # A node that is this busy may be taken for silent, and its raft groups for leaderless.
    grpc.StatusCode.UNAVAILABLE,
}


class Answer(NamedTuple):
    """Outcome of a call: responses, or the gRPC status that ended it."""

    responses: list[Message]
    status: grpc.StatusCode = grpc.StatusCode.OK
    text: str = ""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A node with a topic of each type."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    standalone = Standalone(tmp_path_factory.mktemp("fuzz") / "data")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        standalone.start()
    with grpc.insecure_channel(standalone.endpoint) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        for namespace in ("", "other"):
            for name, kind in (TOPICS | {TOPIC: "NORMAL"}).items():
                topic = meta_pb2.Topic(
                    namespace=namespace,
                    name=name,
                    type=meta_pb2.TopicType.Value(f"TOPIC_TYPE_{kind}"),
                    queue_count=4,
                )
                stub.CreateTopic(admin.CreateTopicRequest(topic=topic), timeout=10)
    yield standalone
    standalone.close()


class Fuzzer:
    """Calls one node from many workers."""

    def __init__(self, node: Standalone, seed: int) -> None:
        self._node = node
        self._seed = seed
        self.codes: Counter[tuple[str, str]] = Counter()

    async def run(self, duration_s: float) -> None:
        """Fuzz until the time is over, or until an answer is not legal."""
        ends_s = asyncio.get_running_loop().time() + duration_s
        async with asyncio.TaskGroup() as tasks:
            for worker in range(WORKERS):
                tasks.create_task(self._work(random.Random(self._seed * 1_000 + worker), ends_s))
            tasks.create_task(self._throw_garbage(random.Random(self._seed), ends_s))

    async def _work(self, chance: random.Random, ends_s: float) -> None:
        mutator = Mutator(chance, NAMES)
        methods = [*MESSAGING.methods] * 4 + [*ADMIN.methods, *ROCKETMQ_ADMIN.methods]
        async with grpc.aio.insecure_channel(
            self._node.endpoint,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", -1),
            ],
        ) as channel:
            while asyncio.get_running_loop().time() < ends_s:
                method = chance.choice(methods)
                data = mutator.request(method.input_type, valid_request(method, chance))
                answer = await call(channel, method, data, mutator)
                self._check(method, data, answer)
                for response in answer.responses:
                    mutator.learn(response)

    async def _throw_garbage(self, chance: random.Random, ends_s: float) -> None:
        while asyncio.get_running_loop().time() < ends_s:
            await asyncio.to_thread(abuse, self._node, garbage(chance), chance.random() < 0.5)
            await asyncio.sleep(0.02)

    def _check(self, method: MethodDescriptor, data: bytes, answer: Answer) -> None:
        wrong = f"{method.name}({data[:2_000].hex()}): {answer.status.name} {answer.text}"
        if answer.status is not grpc.StatusCode.OK:
            self.codes[method.name, answer.status.name] += 1
            legal = _LEGAL_ADMIN_STATUSES if method.containing_service is ADMIN else _LEGAL_STATUSES
            assert answer.status in legal or _is_well(method, answer), wrong
            return
        legal_codes = _ANY_RPC | MATRIX.get(method.name, _OTHER) | BEYOND.get(method.name, _NONE)
        if method.containing_service is ROCKETMQ_ADMIN:
            legal_codes = _ANY_RPC | _ADMIN_CODES
        for status in filter(None, map(status_of, answer.responses)):
            name = definition.Code.Name(status.code)
            self.codes[method.name, name] += 1
            assert name in legal_codes - _FAULTS, f"{wrong} answers {name}: {status.message}"


def _is_well(method: MethodDescriptor, answer: Answer) -> bool:
    """Whether a stream only stayed open, or ended while grpcio was still writing to it.

    A connection that holds room for a large request, and sends nothing of it for five seconds while
    others wait, is closed: a fuzzer that gets no processor for so long sees that, too.
    """
    if answer.status.name == "UNAVAILABLE" and answer.text == "Socket closed":
        return True
    broke_off = answer.status.name == "INTERNAL" and answer.text == "Internal error from Core"
    waited = answer.status.name == "DEADLINE_EXCEEDED"
    return method.client_streaming and (waited or broke_off)


def valid_request(method: MethodDescriptor, chance: random.Random) -> Message | None:
    """Return a request of the messaging service that is served; None: of another service."""
    if method.containing_service is not MESSAGING:
        return None
    request: Any = GetMessageClass(method.input_type)()
    topic, kind = chance.choice(list(TOPICS.items()))
    if method.name in ("EndTransaction", "RecallMessage"):
        topic = "fuzz-half" if method.name == "EndTransaction" else "fuzz-delay"
    fields = request.DESCRIPTOR.fields_by_name
    if "topic" in fields:
        request.topic.name = topic
    if "group" in fields:
        request.group.name = "fuzz-group"
    if "message_queue" in fields:
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = chance.choice(("strata-1", "strata-2"))
    if "filter_expression" in fields:
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
    match request:
        case service.SendMessageRequest():
            request.messages.append(valid_message(topic, kind, chance))
        case service.ReceiveMessageRequest():
            request.batch_size = 8
            request.invisible_duration.seconds = 10
        case service.AckMessageRequest():
            request.entries.add()
        case service.EndTransactionRequest():
            request.resolution = chance.choice((definition.COMMIT, definition.ROLLBACK))
        case service.TelemetryCommand():
            request.settings.publishing.topics.add(name=topic)
    return request  # type: ignore[no-any-return]


def valid_message(topic: str, kind: str, chance: random.Random) -> definition.Message:
    """Return a message that a topic of this type takes."""
    message = definition.Message(body=b"fuzz")
    message.topic.name = topic
    message.user_properties["color"] = "red"
    properties = message.system_properties
    properties.message_id = f"01{chance.getrandbits(128):032X}"
    properties.keys.append("key")
    properties.tag = "tag"
    if kind == "FIFO":
        properties.message_group = f"group-{chance.randrange(8)}"
    elif kind == "DELAY":
        properties.delivery_timestamp.GetCurrentTime()
        properties.delivery_timestamp.seconds += chance.randrange(3)
    elif kind == "TRANSACTION":
        properties.message_type = definition.TRANSACTION
    return message


def status_of(response: Any) -> definition.Status | None:
    """Return the Status of a response of the messaging service; None: it has none."""
    field = response.DESCRIPTOR.fields_by_name.get("status")
    # The health of a cluster is called a status, too; it is a number.
    if field is None or field.message_type is None or not response.HasField("status"):
        return None
    status: definition.Status = response.status
    return status


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, mutator: Mutator
) -> Answer:
    """Call a method of any kind with these bytes."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    how: dict[str, Any] = {"metadata": mutator.metadata(), "timeout": CALL_TIMEOUT_S}
    stub: Any
    try:
        if method.client_streaming:
            stub = channel.stream_stream(path)
            frames = [data, *(mutator.request(method.input_type) for _ in range(STREAM_FRAMES))]
            stream = stub(iter(frames), **how | {"timeout": STREAM_TIMEOUT_S})
            parts = [part async for part in stream]
        elif method.server_streaming:
            stub = channel.unary_stream(path)
            parts = [part async for part in stub(data, **how)]
        else:
            stub = channel.unary_unary(path)
            parts = [await stub(data, **how)]
    except grpc.aio.AioRpcError as error:
        return Answer([], error.code(), error.details() or "")
    return Answer([GetMessageClass(method.output_type).FromString(part) for part in parts])


@pytest.mark.timeout(120 + DURATION_S)
async def test_every_rpc_withstands_anything(node: Standalone) -> None:
    """Alive, legal codes, no internal error, a good client served all the while, memory bounded."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    fuzzer = Fuzzer(node, seed)
    async with good_client(node):
        await fuzzer.run(min(2.0, DURATION_S))
        before = resident_bytes(node.pid)
        await fuzzer.run(DURATION_S)
        growth = resident_bytes(node.pid) - before
    print(f"{sum(fuzzer.codes.values())} answers, {growth / 1e6:.0f} MB more")
    closed = sum(count for (_, code), count in fuzzer.codes.items() if code == "UNAVAILABLE")
    assert closed <= WORKERS, "connections are closed again and again"
    for (rpc, code), count in sorted(fuzzer.codes.items()):
        print(f"{rpc:32} {code:36} {count}")
    assert growth < GROWTH_LIMIT_BYTES
    assert "Traceback" not in node.log_path.read_text()
    reached = {rpc for rpc, code in fuzzer.codes if code == "OK"}
    assert {"SendMessage", "QueryRoute", "Heartbeat", "PullMessage", "Telemetry"} <= reached
