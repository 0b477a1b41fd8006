"""Every RPC x who calls it, through real sockets: what access control answers."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import service_pb2
from strata.admin.v1 import admin_pb2, container_pb2
from strata.broker.v1 import peer_pb2
from strata.kv.v1 import kv_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.table import all_paths
from strata_mq.access import Session, issue_session, peer_access_key, peer_secret_key
from strata_runtime.clock import SystemClock
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from strata_testing.broker.keys import (
    CLUSTER_KEY,
    cluster_key_row,
    policy_row,
    secret_of,
    signed,
    user_row,
)
from tests.integration.broker.access_calls import (
    ADMIN,
    CONTAINER,
    GROUP,
    KV,
    LET_IN,
    MESSAGING,
    NAMESPACE,
    PEER,
    STRATA,
    SUBSCRIBES,
    TABLE,
    TOPIC,
    USER,
    call,
    ruled,
)
from tests.integration.broker.plain_edge import plain_edge

_TOPIC, _GROUP, _TABLE = (
    f"{kind}:{NAMESPACE}/{name}"
    for kind, name in (("topic", TOPIC), ("group", GROUP), ("table", TABLE))
)
_SUB = (f"{_GROUP} sub", f"{_TOPIC} sub")
_PUB = (f"{_TOPIC} pub",)
_READS = (f"{_TOPIC} sub",)
_KNOWN = f"{_TOPIC} get|sub|update"
ADMINS, BROKERS = ("an admin",), ("a broker",)
SKEW_MS = 900_000

RIGHTS: dict[str, tuple[str, ...]] = {
    MESSAGING + "QueryRoute": (f"{_TOPIC} pub|sub",),
    MESSAGING + "Heartbeat": (f"{_GROUP} sub",),
    MESSAGING + "SendMessage": _PUB,
    MESSAGING + "QueryAssignment": _SUB,
    MESSAGING + "ReceiveMessage": _SUB,
    MESSAGING + "AckMessage": _SUB,
    MESSAGING + "ForwardMessageToDeadLetterQueue": _SUB,
    MESSAGING + "PullMessage": _SUB,
    MESSAGING + "UpdateOffset": _SUB,
    MESSAGING + "GetOffset": _SUB,
    MESSAGING + "QueryOffset": _READS,
    MESSAGING + "EndTransaction": _PUB,
    MESSAGING + "Telemetry": _PUB,
    SUBSCRIBES: _SUB,
    MESSAGING + "NotifyClientTermination": (f"{_GROUP} sub",),
    MESSAGING + "ChangeInvisibleDuration": _SUB,
    MESSAGING + "RecallMessage": _PUB,
    MESSAGING + "SyncLiteSubscription": _SUB,
    ADMIN + "ChangeLogLevel": ("cluster:config update",),
    ADMIN + "DescribeTopicStatus": (f"{_TOPIC} get",),
    ADMIN + "ListSubscription": (f"{_GROUP} get", _KNOWN),
    ADMIN + "DescribeSubscription": (f"{_GROUP} get", _KNOWN),
    ADMIN + "DeleteSubscription": (f"{_GROUP} update", _KNOWN),
    ADMIN + "DescribeGroupAccumulation": (f"{_GROUP} get",),
    ADMIN + "ListConsumerConnection": (f"{_GROUP} get", _KNOWN),
    ADMIN + "ResetGroupOffset": (f"{_GROUP} update", _KNOWN),
    ADMIN + "QueryMessage": _READS,
    ADMIN + "PrintThreadStackTrace": (f"{_GROUP} update",),
    ADMIN + "VerifyMessage": (f"{_TOPIC} sub", f"{_GROUP} update"),
    ADMIN + "AdminSendMessage": _PUB,
    ADMIN + "GetConsumerRunningInfo": (f"{_GROUP} get",),
    ADMIN + "GetTopicRoute": (f"{_TOPIC} get|pub|sub",),
    ADMIN + "QueryTimeSpan": (f"{_GROUP} get",),
    ADMIN + "GetProxyRuntimeStats": ("cluster:stats get",),
    STRATA + "CreateTopic": (f"{_TOPIC} create",),
    STRATA + "CreateTopics": (f"{_TOPIC} create",),
    STRATA + "GetTopic": (f"{_TOPIC} get",),
    STRATA + "ListTopics": (),
    STRATA + "UpdateTopic": (f"{_TOPIC} update",),
    STRATA + "DeleteTopic": (f"{_TOPIC} delete",),
    STRATA + "PurgeTopic": (f"{_TOPIC} delete",),
    STRATA + "CreateConsumerGroup": (f"{_GROUP} create",),
    STRATA + "GetConsumerGroup": (f"{_GROUP} get",),
    STRATA + "ListConsumerGroups": (),
    STRATA + "UpdateConsumerGroup": (f"{_GROUP} update",),
    STRATA + "DeleteConsumerGroup": (f"{_GROUP} delete",),
    STRATA + "ResetConsumerGroup": (f"{_GROUP} update", _KNOWN),
    STRATA + "FindMessages": _READS,
    STRATA + "ListQueueSpans": (f"{_TOPIC} get|sub",),
    STRATA + "ListLiteTopics": (f"{_TOPIC} get",),
    STRATA + "ScanQueue": _READS,
    STRATA + "TraceMessage": _READS,
    STRATA + "ListDeadLetterTopics": (),
    STRATA + "ListDeadLetters": (f"{_GROUP} sub",),
    STRATA + "RedriveDeadLetters": (f"{_GROUP} update",),
    STRATA + "ListTransactions": (f"{_TOPIC} list|get",),
    STRATA + "GetTransaction": _READS,
    STRATA + "EndTransaction": _PUB,
    STRATA + "ListClients": ("cluster:clients get|list",),
    STRATA + "GetConfig": ("cluster:config get",),
    STRATA + "GetCluster": ("cluster:nodes get|list",),
    STRATA + "GetHealth": ("cluster:health get",),
    STRATA + "GetRaftGroup": ("cluster:raft_groups get",),
    STRATA + "DrainNode": ("cluster:nodes update",),
    STRATA + "RemoveNode": ("cluster:nodes delete",),
    STRATA + "ChangeReplicas": ("cluster:raft_groups update",),
    STRATA + "TransferLeader": ("cluster:raft_groups update",),
    STRATA + "GetQueue": (f"{_TOPIC} get",),
    STRATA + "MoveQueue": ("cluster:placement update",),
    STRATA + "ListSlots": ("cluster:placement list|get",),
    STRATA + "MoveSlots": ("cluster:placement update",),
    STRATA + "SetQuota": ("cluster:quotas update",),
    STRATA + "GetQuota": (f"{_TOPIC} get",),
    STRATA + "ListQuotas": (),
    STRATA + "ProposePlan": ("cluster:placement create",),
    STRATA + "ApplyPlan": ("cluster:placement update",),
    STRATA + "GetPlacement": ("cluster:placement get",),
    STRATA + "SetPlacementModel": ("cluster:placement update",),
    STRATA + "GetTier": ("cluster:tier get",),
    STRATA + "PauseTier": ("cluster:tier update",),
    STRATA + "FlushTier": ("cluster:tier update",),
    STRATA + "ReplaceTierRanges": ("cluster:tier update",),
    STRATA + "PlanTierSweep": ("cluster:tier get",),
    STRATA + "ForgetTierObjects": ("cluster:tier delete",),
    **{
        STRATA + rpc: ADMINS
        for rpc in (
            *("CreateUser", "GetUser", "ListUsers", "UpdateUser", "DeleteUser", "RotateUserKey"),
            *("CreateUserSession", "CreatePolicy", "ListPolicies", "DeletePolicy", "TestPolicy"),
            "RotateClusterKey",
        )
    },
    CONTAINER + "AddBroker": ("cluster:containers create",),
    CONTAINER + "RemoveBroker": ("cluster:containers delete",),
    CONTAINER + "ListMembers": ("cluster:containers list|get",),
    CONTAINER + "GetMemberConfig": ("cluster:containers get",),
    CONTAINER + "UpdateMemberConfig": ("cluster:containers update",),
    KV + "Put": (f"{_TABLE} update",),
    KV + "Get": (f"{_TABLE} get",),
    KV + "Delete": (f"{_TABLE} update",),
    KV + "CompareAndSet": (f"{_TABLE} update",),
    KV + "List": (f"{_TABLE} get",),
    KV + "Batch": (f"{_TABLE} update",),
    KV + "Watch": (f"{_TABLE} get",),
    KV + "Export": (f"{_TABLE} get",),
    KV + "CreateTable": (f"{_TABLE} create",),
    KV + "GetTable": (f"{_TABLE} get",),
    KV + "ListTables": (),
    KV + "DeleteTable": (f"{_TABLE} delete",),
    PEER + "ListClients": BROKERS,
    PEER + "CommandClient": BROKERS,
    PEER + "CountConnections": BROKERS,
    PEER + "SyncLite": BROKERS,
    PEER + "PushReply": BROKERS,
    PEER + "TellReset": BROKERS,
    PEER + "AwaitRevision": BROKERS,
}
"""RPC -> the rights that it takes: resource and one of these actions. They are the contract."""

NAMES = sorted(RIGHTS)
OPERATED = {name for name, rights in RIGHTS.items() if rights in (ADMINS, BROKERS)}


def _user(name: str, kind: str) -> str:
    """The test user who has, or lacks, rights on one RPC."""
    return f"{kind}-{NAMES.index(name)}"


def _rows() -> list[meta_pb2.Change]:
    rows = [cluster_key_row(), user_row("root", admin=True), user_row("nobody")]
    rows += [user_row("disabled", disabled=True), user_row("everything")]
    later_ms = round((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    rows.append(user_row("rotated", previous_secret_key="old", previous_valid_until_ms=later_ms))
    rows.append(user_row("done", previous_secret_key="old", previous_valid_until_ms=1))
    number = 2
    rows.append(policy_row(1, "everything", "*", "all"))
    # A thief that copies a header of this user is elsewhere.
    rows.append(user_row("bound"))
    rows.append(policy_row(number, "bound", "*", "all", sources=["10.0.0.0/8"]))
    for name, rights in RIGHTS.items():
        if name in OPERATED:
            continue
        for kind in ("right", "denied", *(f"without{at}" for at in range(len(rights)))):
            rows.append(user_row(_user(name, kind)))
            for at, right in enumerate(rights):
                resource, _, actions = right.partition(" ")
                if kind != f"without{at}":
                    number += 1
                    one = actions.split("|")[-1]
                    rows.append(policy_row(number, _user(name, kind), resource, one))
            for right in rights if kind == "denied" else ():
                resource, _, actions = right.partition(" ")
                number += 1
                denied = policy_row(
                    number, _user(name, kind), resource, *actions.split("|"), allow=False
                )
                rows.append(denied)
    return rows


class ShiftedClock(SystemClock):
    """The machine's clocks; a test lets wall time go on.

    Attributes:
        shift_ms: that wall time is ahead.
    """

    __slots__ = ("shift_ms",)

    def __init__(self) -> None:
        self.shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


class Scene(NamedTuple):
    """A broker under test.

    Attributes:
        channel: a connection to it.
        clock: by which it judges dates.
        endpoint: where it listens.
    """

    channel: grpc.aio.Channel
    clock: ShiftedClock
    endpoint: str


@pytest.fixture(scope="module")
def channel(scene: Scene) -> grpc.aio.Channel:
    """A connection to the broker."""
    return scene.channel


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    """A broker with access control, users and policies; and a connection to it."""
    meta = FakeMeta()
    meta.add_topic(TOPIC, namespace=NAMESPACE)
    meta.add_group(meta_pb2.ConsumerGroup(namespace=NAMESPACE, name=GROUP))
    meta.put(*_rows())
    config = broker_config(
        plugins=("kv", "container"),
        access_control={
            "mode": "on",
            "max_wrong_signatures": 10_000,
            "max_clock_skew_ms": SKEW_MS,
            "time_zones": ["UTC", "+09:00"],
        },
        metadata={"call_timeout_ms": 200, "try_timeout_ms": 100},
        storage_client={"call_timeout_ms": 200},
        receive={"max_polling_ms": 1_000},
    )
    network = network_of(meta, FakeStorage(meta.slots))
    async with (
        broker_under_test(plain_edge(config), network, config=config) as broker,
        grpc.aio.insecure_channel(broker.app.endpoint) as opened,
    ):
        clock = ShiftedClock()
        broker.app.access._clock = clock
        yield Scene(opened, clock, broker.app.endpoint)
        # Services behind a call that was let in may be missing in the cluster of this test.
        broker.failures[:] = [one for one in broker.failures if not _is_of_fakes(one[1])]


def _is_of_fakes(failure: BaseException) -> bool:
    return "strata_testing" in traceback.extract_tb(failure.__traceback__)[-1].filename


def session(user: str, *, ended: bool = False) -> Session:
    """Temporary keys of a test user."""
    ends = datetime.now(UTC) + timedelta(hours=-1 if ended else 1)
    return issue_session(user, round(ends.timestamp() * 1000), 1, CLUSTER_KEY)


every_rpc = pytest.mark.parametrize("name", NAMES)
on_module_loop = pytest.mark.asyncio(loop_scope="module")


def test_the_matrix_has_every_rpc_that_is_served() -> None:
    """An RPC that somebody adds to a service needs a rule, and its rights written down here."""
    served = {
        f"/{service.full_name}/{rpc.name}"
        for service in (
            service_pb2.DESCRIPTOR.services_by_name["MessagingService"],
            rocketmq_admin_pb2.DESCRIPTOR.services_by_name["Admin"],
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
            container_pb2.DESCRIPTOR.services_by_name["ContainerService"],
            kv_pb2.DESCRIPTOR.services_by_name["KvService"],
            peer_pb2.DESCRIPTOR.services_by_name["PeerService"],
        )
        for rpc in service.methods
    }
    assert served == set(all_paths())
    assert served == set(RIGHTS) - {SUBSCRIBES}


@on_module_loop
@every_rpc
async def test_without_a_right_signature_nobody_is_let_in(
    channel: grpc.aio.Channel, name: str
) -> None:
    """No key, a wrong one, an unknown or disabled user, a stale date, wrong and expired tokens."""
    now = datetime.now(UTC)
    good, ended = session("everything"), session("everything", ended=True)
    # ChangeLogLevel has no Status in its answer.
    speaks_rocketmq = name.startswith((MESSAGING, ADMIN)) and name != ADMIN + "ChangeLogLevel"
    unsigned = "username cannot be null." if speaks_rocketmq else "the call is not signed"
    for text, headers in {
        unsigned: {},
        "authentication header is incorrect.": {"authorization": "Bearer abc"},
        "check signature failed.": signed("everything", "wrong"),
        "User:stranger is not found.": signed("stranger"),
        "User:disabled is disabled.": signed("disabled"),
        "check signature failed. The date": signed("everything", date=now - timedelta(days=2)),
        "check signature failed. The date ": signed("everything", date=now + timedelta(days=2)),
        "check signature failed. ": {**signed("everything"), "x-mq-date-time": ""},
        "check signature failed": signed("done", "old"),
        "check signature failed. The session token is not valid.": signed(
            "everything", good.secret_key, token="x" + good.token[1:]
        ),
        "check signature failed. The session token has expired.": signed(
            "everything", ended.secret_key, token=ended.token
        ),
        "check signature": signed("everything", good.secret_key),
        "check": signed("root", good.secret_key, token=good.token),
    }.items():
        answer = await call(channel, name, headers)
        assert answer.outcome == "UNAUTHORIZED", text
        assert answer.text.startswith(text)


@on_module_loop
@every_rpc
async def test_a_user_without_policies_is_refused(channel: grpc.aio.Channel, name: str) -> None:
    """Default deny, but for lists, which are empty."""
    answer = await call(channel, name, signed("nobody"))
    if not RIGHTS[name]:
        assert answer == LET_IN
        return
    assert answer.outcome == "FORBIDDEN"
    assert answer.text.startswith("User:nobody has no permission to access ")
    assert answer.text.endswith(" from 127.0.0.1, no matched policies.")


@on_module_loop
@every_rpc
async def test_exactly_the_rights_of_the_rpc_let_in(channel: grpc.aio.Channel, name: str) -> None:
    """All of them do; without any one of them the call is refused; a denial wins."""
    rights = RIGHTS[name]
    if name in OPERATED:
        assert (await call(channel, name, signed("everything"))).outcome == "FORBIDDEN"
        return
    assert await call(channel, name, signed(_user(name, "right"))) == LET_IN
    for at, right in enumerate(rights):
        answer = await call(channel, name, signed(_user(name, f"without{at}")))
        assert answer.outcome == "FORBIDDEN", right
        kind, _, place = right.partition(" ")[0].partition(":")
        assert f" {kind.capitalize()}:{place} from " in answer.text
    if rights:
        answer = await call(channel, name, signed(_user(name, "denied")))
        assert answer.outcome == "FORBIDDEN"
        assert answer.text.endswith("the decision is deny.")


@on_module_loop
@every_rpc
async def test_an_admin_may_do_everything_but_what_is_between_brokers(
    channel: grpc.aio.Channel, name: str
) -> None:
    """And another broker may do nothing else."""
    wanted = "FORBIDDEN" if RIGHTS[name] == BROKERS else "let in"
    assert (await call(channel, name, signed("root"))).outcome == wanted
    peer = signed(peer_access_key(1), peer_secret_key(CLUSTER_KEY))
    wanted = "let in" if RIGHTS[name] == BROKERS else "FORBIDDEN"
    assert (await call(channel, name, peer)).outcome == wanted
    other = signed(peer_access_key(1), peer_secret_key(b"another cluster's"))
    assert (await call(channel, name, other)).outcome == "UNAUTHORIZED"


@on_module_loop
@every_rpc
async def test_a_copied_header_is_good_for_a_while(scene: Scene, name: str) -> None:
    """Another connection may use it within the window, not after it, and only where its user may.

    The signature covers the date alone: within the window nobody can tell the two callers apart.
    """
    copied = signed("everything")
    wanted = "FORBIDDEN" if name in OPERATED else "let in"
    async with grpc.aio.insecure_channel(
        scene.endpoint, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as elsewhere:
        for channel in (scene.channel, elsewhere):
            assert (await call(channel, name, copied)).outcome == wanted
        bound = await call(elsewhere, name, signed("bound"))
        # Lists take no right, and show what may be seen: nothing.
        assert bound.outcome == ("FORBIDDEN" if RIGHTS[name] else "let in")
        scene.clock.shift_ms = SKEW_MS + 2_000
        try:
            for channel in (scene.channel, elsewhere):
                late = await call(channel, name, copied)
                assert late.outcome == "UNAUTHORIZED"
                assert "access_control.max_clock_skew_ms" in late.text
        finally:
            scene.clock.shift_ms = 0


@on_module_loop
async def test_keys_that_are_good(channel: grpc.aio.Channel) -> None:
    """Temporary keys, the key before a rotation, local time, a repeated header."""
    temporary = session("everything")
    local = datetime.now(UTC) + timedelta(hours=9)
    repeated = signed("everything")
    for headers in (
        signed("everything", temporary.secret_key, token=temporary.token),
        signed("everything", date=local),
        repeated,
        repeated,
    ):
        assert await call(channel, MESSAGING + "SendMessage", headers) == LET_IN
    for secret in ("old", secret_of("rotated")):
        answer = await call(channel, STRATA + "ListTopics", signed("rotated", secret))
        assert answer == LET_IN


@on_module_loop
async def test_users_may_look_at_themselves(channel: grpc.aio.Channel) -> None:
    """A user sees its own row and policies, and nobody else's."""
    for name, request in (
        (STRATA + "GetUser", admin_pb2.GetUserRequest(name="nobody")),
        (STRATA + "ListPolicies", admin_pb2.ListPoliciesRequest(user="nobody")),
        (STRATA + "TestPolicy", admin_pb2.TestPolicyRequest(user="nobody")),
    ):
        assert await call(channel, name, signed("nobody"), request) == LET_IN
        request = ruled(name).request_type()  # type: ignore[assignment]
        assert (await call(channel, name, signed("nobody"), request)).outcome == "FORBIDDEN"
    assert USER != "nobody"


@on_module_loop
async def test_health_stays_open(channel: grpc.aio.Channel) -> None:
    """Probes have no keys."""
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await check(b"")
