"""A call whose answer was lost is sent again, and gets the answer of the first try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from strata.meta.v1 import command_pb2, meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import UNAVAILABLE, AngeliaError, CallContext
from strata_metadata import MetadataClient, MetadataClientOptions, MetaRefused
from strata_metadata.identity import look_up_node
from strata_metadata.rows import ROW_FORMAT
from strata_metadata.servicer import META_SERVICE
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.servicers.meta import MetaAnswers, MetaServicer
from strata_nameserver.state import answers
from strata_runtime.metrics import Metrics
from strata_state.metadata_keys import MetadataRowKind, kind_range
from tests.unit.nameserver.loaded_storage import Loaded
from tests.unit.nameserver.storage_nodes import storage
from tests.unit.nameserver.test_placement_plans import table
from tests.unit.nameserver.test_snapshots import send

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

Response = TypeVar("Response", bound=Message)

READS = {"ExplainQueue", "GetIdentity", "GetPlacement", "GetSnapshot", "Watch"}
REPORTS = {
    "ConfirmDropped": "of a tombstone that is done, or is gone: nothing happens",
    "ConfirmRehashed": "of another queue count: nothing happens",
    "Heartbeat": "the next one says it again",
    "RegisterNode": "the row is as the node says",
    "ReportQueueDrained": "of epochs that are gone: nothing happens",
    "ReportQueueMoved": "of an epoch that is recorded: nothing happens",
    "ReportSlotsGranted": "of another move: refused, and the rows say that it has ended",
    "ReportSlotsRevoked": "of another move: refused, and the rows say that it has ended",
}
RPCS = {rpc.name: rpc for rpc in META_SERVICE.methods}
NAMED = {name for name, rpc in RPCS.items() if "call_id" in rpc.input_type.fields_by_name}


class Wire:
    """Carries calls to a nameserver, whichever one there is now; some answers are lost.

    Attributes:
        nameserver: that is asked.
        lost: answers to lose from now on.
        requests: that arrived.
        between: called after an answer was lost.
    """

    def __init__(self, nameserver: Nameserver, lost: int = 1) -> None:
        self.nameserver = nameserver
        self.lost = lost
        self.requests: list[Message] = []
        self.between: Callable[[], Any] = asyncio.get_running_loop().time

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        self.requests.append(request)
        response = await answer_of(self.nameserver, method.rpartition("/")[2], request)
        assert isinstance(response, response_type)
        if self.lost:
            self.lost -= 1
            done = self.between()
            if asyncio.iscoroutine(done):
                await done
            raise AngeliaError(UNAVAILABLE, "the connection was lost")
        return response

    def stream(self, method: str, request: Message, response_type: type[Response]) -> Any:
        raise AssertionError("no stream is opened")

    async def close(self) -> None:
        """Nothing is open."""


async def answer_of(nameserver: Nameserver, rpc: str, request: Message) -> Message:
    """Return what a nameserver answers to a call."""
    cluster = ClusterId("c1")
    refusals = MetaAnswers(lambda: ("", ""))
    servicer = MetaServicer(cluster, partial(look_up_node, nameserver.store), refusals)
    servicer.serve(nameserver.metadata)
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in rpc)[1:]
    try:
        response: Any = await getattr(servicer, snake)(request, CallContext(timeout_s=None))
    except MetaRefused as refused:
        response = message_factory.GetMessageClass(RPCS[rpc].output_type)()
        refusals.refuse(response, refused)
    refusals.complete(response)
    assert isinstance(response, Message)
    return response


def client_of(wire: Wire) -> MetadataClient:
    options = MetadataClientOptions(first_retry_ms=1, max_retry_ms=1)
    return MetadataClient(
        ["a"], lambda _: wire, options, random=lambda: 0.0, metrics=Metrics.disabled()
    )


async def ask(wire: Wire, rpc: str, request: Message) -> Any:
    """Let a client make a call, until it has an answer."""
    response_type = message_factory.GetMessageClass(RPCS[rpc].output_type)
    return await client_of(wire).call(rpc, request, response_type)


def rows_of(nameserver: Nameserver) -> dict[bytes, bytes]:
    """Everything but what every revision changes."""
    rows = nameserver.store.scan(b"\x01", b"\xff")
    return {key: value for key, value in rows if key[0] != MetadataRowKind.CHANGE}


def answer_rows(nameserver: Nameserver) -> list[bytes]:
    return nameserver.machine.rows(*kind_range(MetadataRowKind.ANSWER))


def test_no_call_is_missing() -> None:
    """Each RPC has an id, or only reads, or has a reason why it needs none."""
    assert RPCS.keys() == NAMED | READS | REPORTS.keys()
    assert not NAMED & (READS | REPORTS.keys())
    assert CALLS.keys() == NAMED


async def loaded_with_everything(loaded: Loaded) -> Nameserver:
    """Make what calls change: a user, a policy, a consumer group, a plan, a node without replicas.

    Two brokers, as the only one stays.
    """
    metadata = loaded.nameserver.metadata
    for node in list(loaded.nameserver.machine.speculative.topology.nodes.values()):
        newer = meta_pb2.Node()
        newer.CopyFrom(node)
        newer.row_format = ROW_FORMAT
        await metadata.register_node(newer)
    for name in ("broker-a", "broker-b"):
        await metadata.register_node(
            meta_pb2.Node(
                node_id=name,
                kind=meta_pb2.NODE_KIND_BROKER,
                boot_id=1,
                advertised_endpoint="h:1",
                row_format=ROW_FORMAT,
            )
        )
    await metadata.register_node(storage("d"))
    await metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    await metadata.access.ensure_admin("root", "a-secret-of-root", unless_any=True)
    await metadata.access.create_user(meta_pb2.User(name="app", secret_key="old-secret-key"))
    await metadata.access.create_policy(policy("*"))
    step = meta_pb2.PlacementStep(
        transfer_leader=meta_pb2.TransferLeaderStep(raft_group=1, from_node_id="a", to_node_id="b")
    )
    await metadata.placement.propose(meta_pb2.PlacementPlan(steps=[step]))
    return loaded.nameserver


def policy(resource: str) -> meta_pb2.Policy:
    allow = meta_pb2.POLICY_DECISION_ALLOW
    return meta_pb2.Policy(user="app", resource=resource, actions=["pub"], decision=allow)


def row_of(nameserver: Nameserver, kind: MetadataRowKind, row_type: type[Message]) -> Any:
    return row_type.FromString(nameserver.machine.rows(*kind_range(kind))[-1])


def topic_of(nameserver: Nameserver, **values: Any) -> meta_pb2.Topic:
    """The topic as its row is now, with other values."""
    row: meta_pb2.Topic = row_of(nameserver, MetadataRowKind.TOPIC, meta_pb2.Topic)
    for name, value in values.items():
        setattr(row, name, value)
    return row


def plan_id_of(nameserver: Nameserver) -> int:
    plan = row_of(nameserver, MetadataRowKind.PLACEMENT_PLAN, meta_pb2.PlacementPlan)
    return int(plan.plan_id)


def move_away(nameserver: Nameserver) -> meta_pb2.MoveQueueRequest:
    """Move the first queue of the topic to the next raft group."""
    topic = topic_of(nameserver)
    owner = nameserver.machine.speculative.topology.slot_owners[topic.slot_base]
    return meta_pb2.MoveQueueRequest(topic="t", queue=0, to_raft_group=owner % 3 + 1)


CALLS: dict[str, Callable[[Nameserver], Message]] = {
    "ApplyPlan": lambda n: meta_pb2.ApplyPlanRequest(plan_id=plan_id_of(n), stop=True),
    "ChangeReplicas": lambda _: meta_pb2.ChangeReplicasRequest(raft_group=1, add_node_ids=["d"]),
    "CreateConsumerGroup": lambda _: meta_pb2.CreateConsumerGroupRequest(
        consumer_group=meta_pb2.ConsumerGroup(name="new")
    ),
    "CreatePolicy": lambda _: meta_pb2.CreatePolicyRequest(policy=policy("topic:t")),
    "CreateTopic": lambda _: meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="new")),
    "CreateTopics": lambda _: meta_pb2.CreateTopicsRequest(
        topics=[meta_pb2.Topic(name="new"), meta_pb2.Topic(name="t", queue_count=1)]
    ),
    "CreateUser": lambda _: meta_pb2.CreateUserRequest(user=meta_pb2.User(name="new")),
    "DeleteConsumerGroup": lambda _: meta_pb2.DeleteConsumerGroupRequest(name="g"),
    "DeletePolicy": lambda _: meta_pb2.DeletePolicyRequest(policy_id=1),
    "DeleteTopic": lambda _: meta_pb2.DeleteTopicRequest(name="t"),
    "DeleteUser": lambda _: meta_pb2.DeleteUserRequest(name="app"),
    "DrainNode": lambda _: meta_pb2.DrainNodeRequest(node_id="a", draining=True),
    "MoveQueue": move_away,
    "MoveSlots": lambda _: meta_pb2.MoveSlotsRequest(first_slot=0, slot_count=4, to_raft_group=1),
    "PreferLeader": lambda _: meta_pb2.PreferLeaderRequest(raft_group=1, node_id="b"),
    "ProposePlan": lambda _: meta_pb2.ProposePlanRequest(
        plan=meta_pb2.PlacementPlan(planner="again")
    ),
    "RemoveNode": lambda _: meta_pb2.RemoveNodeRequest(node_id="broker-b"),
    "RotateClusterKey": lambda _: meta_pb2.RotateClusterKeyRequest(),
    "SetPlacementModel": lambda _: meta_pb2.SetPlacementModelRequest(
        model=meta_pb2.PlacementModel(version=1, table=table(g1=1.0))
    ),
    "SetQuota": lambda _: meta_pb2.SetQuotaRequest(
        quota=meta_pb2.Quota(topics=5), update_mask=["topics"]
    ),
    "UpdateConsumerGroup": lambda n: meta_pb2.UpdateConsumerGroupRequest(
        consumer_group=meta_pb2.ConsumerGroup(
            name="g",
            max_attempts=3,
            revision=row_of(n, MetadataRowKind.CONSUMER_GROUP, meta_pb2.ConsumerGroup).revision,
        ),
        update_mask=["max_attempts"],
    ),
    "UpdateTopic": lambda n: meta_pb2.UpdateTopicRequest(
        topic=topic_of(n, retention_ms=5_000_000), update_mask=["retention_ms"]
    ),
    "UpdateUser": lambda _: meta_pb2.UpdateUserRequest(
        user=meta_pb2.User(name="app"), update_mask=["secret_key"], previous_valid_ms=3_600_000
    ),
}


@pytest.mark.parametrize("rpc", sorted(CALLS))
async def test_a_repeat_changes_nothing_and_gets_the_first_answer(
    loaded: Loaded, make_nameserver: MakeNameserver, rpc: str
) -> None:
    """From the same leader, from one that has its rows, and from one to which they were sent."""
    nameserver = await loaded_with_everything(loaded)
    wire = Wire(nameserver, lost=3)
    seen: list[tuple[int, dict[bytes, bytes]]] = []

    async def hand_over() -> None:
        seen.append((wire.nameserver.machine.revision, rows_of(wire.nameserver)))
        if len(seen) == 2:
            wire.nameserver = nameserver.restarted()
        elif len(seen) == 3:
            wire.nameserver = make_nameserver(nameserver.config)
            await send(nameserver, wire.nameserver)
        wire.nameserver.machine.on_leader(len(seen) + 1)

    wire.between = hand_over
    answer = await ask(wire, rpc, CALLS[rpc](nameserver))

    assert len(wire.requests) == 4
    seen.append((wire.nameserver.machine.revision, rows_of(wire.nameserver)))
    assert seen == [seen[0]] * 4
    told = command_pb2.AnsweredCall.FromString(answer_rows(wire.nameserver)[-1])
    assert (told.rpc, told.at_ms) == (rpc, nameserver.clock.wall_ms())
    answer.ClearField("status")
    assert answer == type(answer).FromString(told.answer)


async def test_the_key_before_a_repeated_rotation_stays_valid(loaded: Loaded) -> None:
    """The nameserver makes the new key: a second one would end the one that clients sign with."""
    nameserver = await loaded_with_everything(loaded)
    answer = await ask(Wire(nameserver), "UpdateUser", CALLS["UpdateUser"](nameserver))
    assert answer.user.previous_secret_key == "old-secret-key"
    [stored] = [
        user
        for user in map(
            meta_pb2.User.FromString, nameserver.machine.rows(*kind_range(MetadataRowKind.USER))
        )
        if user.name == "app"
    ]
    assert stored == answer.user


async def test_a_repeat_does_not_delete_what_was_made_since(nameserver: Nameserver) -> None:
    """Somebody was told that the topic is gone, and has made another one of its name."""
    metadata = nameserver.metadata
    before = await metadata.create_topic(meta_pb2.Topic(name="t"))
    wire = Wire(nameserver)
    wire.between = lambda: metadata.create_topic(meta_pb2.Topic(name="t"))
    await ask(wire, "DeleteTopic", meta_pb2.DeleteTopicRequest(name="t"))
    stored = topic_of(nameserver)
    assert (stored.name, stored.topic_id) == ("t", before.topic_id + 1)


async def test_a_repeat_does_not_take_back_what_was_set_since(nameserver: Nameserver) -> None:
    """Without a revision in the request, too."""
    metadata = nameserver.metadata
    await metadata.create_topic(meta_pb2.Topic(name="t"))
    wire = Wire(nameserver)
    later = meta_pb2.Topic(name="t", retention_ms=9_000_000)
    wire.between = lambda: metadata.update_topic(later, ["retention_ms"])
    topic = meta_pb2.Topic(name="t", retention_ms=5_000_000)
    request = meta_pb2.UpdateTopicRequest(topic=topic, update_mask=["retention_ms"])
    answer = await ask(wire, "UpdateTopic", request)
    assert answer.topic.retention_ms == 5_000_000
    assert topic_of(nameserver).retention_ms == 9_000_000


async def test_another_call_keeps_its_honest_answer(nameserver: Nameserver) -> None:
    """A person who repeats the command, or another client: the topic does not exist any more."""
    row = await nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))
    wire = Wire(nameserver, lost=0)
    update = meta_pb2.UpdateTopicRequest(topic=row, update_mask=["retention_ms"])
    await ask(wire, "UpdateTopic", update)
    with pytest.raises(MetaRefused, match="expects revision") as refused:
        await ask(wire, "UpdateTopic", update)
    assert refused.value.outcome == meta_pb2.META_OUTCOME_CONFLICT
    request = meta_pb2.DeleteTopicRequest(name="t")
    await ask(wire, "DeleteTopic", request)
    with pytest.raises(MetaRefused, match="does not exist") as refused:
        await ask(wire, "DeleteTopic", request)
    assert refused.value.outcome == meta_pb2.META_OUTCOME_NOT_FOUND
    assert not request.call_id and not update.call_id, "the caller's request is its own"


async def test_a_refusal_is_no_answer_to_remember(nameserver: Nameserver) -> None:
    """Nothing was carried out: a repeat is decided anew."""
    wire = Wire(nameserver)
    wire.between = lambda: nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))
    request = meta_pb2.DeleteTopicRequest(name="t")
    await ask(wire, "DeleteTopic", request)
    assert nameserver.machine.rows(*kind_range(MetadataRowKind.TOPIC)) == []


async def test_a_repeat_waits_for_the_first_try(nameserver: Nameserver) -> None:
    """Both arrive before anything is committed: there is one change, and one answer."""
    nameserver.replica.commit_at_once = False
    request = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t"), call_id=b"one")
    tries = [asyncio.ensure_future(answer_of(nameserver, "CreateTopic", request)) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(nameserver.replica.entries) == 2, "the storage node's, and one topic"
    await asyncio.sleep(0)
    assert not any(each.done() for each in tries)
    nameserver.replica.commit()
    first, *others = await asyncio.gather(*tries)
    assert isinstance(first, meta_pb2.CreateTopicResponse)
    assert first.topic.revision == nameserver.machine.revision
    assert others == [first, first]


async def test_a_repeat_of_what_is_discarded_is_told_so(nameserver: Nameserver) -> None:
    """The leader loses its leadership before the commit: the next one decides."""
    nameserver.replica.commit_at_once = False
    request = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t"), call_id=b"one")
    tries = [asyncio.ensure_future(answer_of(nameserver, "CreateTopic", request)) for _ in range(2)]
    await asyncio.sleep(0)
    nameserver.replica.lose_leadership()
    told = [response.status.outcome for response in await asyncio.gather(*tries)]  # type: ignore[attr-defined]
    assert told == [meta_pb2.META_OUTCOME_NOT_LEADER] * 2
    nameserver.replica.leader = nameserver.replica.commit_at_once = True
    nameserver.machine.on_leader(3)
    response = await answer_of(nameserver, "CreateTopic", request)
    assert isinstance(response, meta_pb2.CreateTopicResponse)
    assert response.topic.revision == nameserver.machine.revision == 2


async def test_few_answers_are_kept_and_not_for_long(
    nameserver: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By number, by size and by age, the oldest go first; by age with the next change at last."""

    async def create(number: int) -> Message:
        topic = meta_pb2.Topic(name=f"t{number}")
        request = meta_pb2.CreateTopicRequest(topic=topic, call_id=b"call-%d" % number)
        return await answer_of(nameserver, "CreateTopic", request)

    def kept() -> list[bytes]:
        rows = map(command_pb2.AnsweredCall.FromString, answer_rows(nameserver))
        return [row.call_id for row in rows]

    monkeypatch.setattr(answers, "MAX_ANSWERS", 3)
    made = [await create(number) for number in range(5)]
    assert kept() == [b"call-2", b"call-3", b"call-4"]
    assert await create(2) == made[2]
    refused = await create(1)
    assert isinstance(refused, meta_pb2.CreateTopicResponse)
    assert refused.status.outcome == meta_pb2.META_OUTCOME_ALREADY_EXISTS
    size_bytes = sum(map(len, answer_rows(nameserver)))
    monkeypatch.setattr(answers, "MAX_ANSWERS", 10)
    monkeypatch.setattr(answers, "MAX_ANSWERS_BYTES", size_bytes + 5)
    await create(5)
    assert kept() == [b"call-3", b"call-4", b"call-5"]
    counts = {labels["kind"]: count for count, labels in nameserver.machine._row_counts()}
    assert counts["answer"] == len(nameserver.machine.speculative.answers) == 3

    nameserver.clock.advance(answers.KEPT_MS / 1_000 + 1)
    refused = await create(5)
    assert isinstance(refused, meta_pb2.CreateTopicResponse)
    assert refused.status.outcome == meta_pb2.META_OUTCOME_ALREADY_EXISTS
    await nameserver.metadata.delete_topic("", "t0")
    assert kept() == []
    again = nameserver.restarted()
    assert len(again.machine.speculative.answers) == 0


async def test_an_id_that_comes_back_late_is_another_call(nameserver: Nameserver) -> None:
    """The same id may have two rows for a moment; none stays."""
    request = meta_pb2.SetQuotaRequest(
        quota=meta_pb2.Quota(topics=5), update_mask=["topics"], call_id=b"one"
    )
    await answer_of(nameserver, "SetQuota", request)
    nameserver.clock.advance(answers.KEPT_MS / 1_000 + 1)
    request.quota.topics = 6
    second = await answer_of(nameserver, "SetQuota", request)
    assert isinstance(second, meta_pb2.SetQuotaResponse) and second.quota.topics == 6
    assert len(answer_rows(nameserver)) == 1
    assert await answer_of(nameserver, "SetQuota", request) == second


async def test_an_answer_that_is_too_large_is_unknown_not_refused(
    nameserver: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is made once all the same."""
    monkeypatch.setattr("strata_nameserver.state.draft.MAX_ANSWER_BYTES", 10)
    with pytest.raises(MetaRefused, match="was carried out at revision 2; its answer") as told:
        await ask(
            Wire(nameserver),
            "CreateTopic",
            meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t")),
        )
    assert told.value.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
    assert nameserver.machine.revision == 2


async def test_an_id_names_one_call(nameserver: Nameserver) -> None:
    """One of another RPC, or one that is too long, is refused before anything happens."""
    made = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t"), call_id=b"one")
    await answer_of(nameserver, "CreateTopic", made)
    for call_id, reason in (
        (b"one", "this call_id of DeleteTopic is that of a call of CreateTopic"),
        (b"x" * 65, "a call_id of 65 bytes; at most 64 are allowed"),
    ):
        request = meta_pb2.DeleteTopicRequest(name="t", call_id=call_id)
        response = await answer_of(nameserver, "DeleteTopic", request)
        assert isinstance(response, meta_pb2.DeleteTopicResponse)
        assert response.status.outcome == meta_pb2.META_OUTCOME_INVALID
        assert response.status.reason == reason
    assert nameserver.machine.revision == 2


async def test_a_leader_of_an_earlier_version_leaves_no_trouble(
    make_nameserver: MakeNameserver,
) -> None:
    """It keeps and forgets no answers; what it does not know of the counters it hands on."""
    nameserver = await make_nameserver(NameserverConfig().alone()).with_storage()
    request = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t"), call_id=b"one")
    first = await answer_of(nameserver, "CreateTopic", request)
    entry = nameserver.replica.entries[-1]
    command = command_pb2.Command.FromString(b"".join(entry.payload))
    assert command.answered.call_id == b"one"
    command.ClearField("answered")
    command.counters.revision += 1
    del command.changes[:]
    later = replace(entry, index=entry.index + 1, payload=(command.SerializeToString(),))
    nameserver.machine.apply([later])
    nameserver.machine.on_leader(2)
    assert await answer_of(nameserver, "CreateTopic", request) == first
