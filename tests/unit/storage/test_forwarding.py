"""Bringing messages to the raft group that has their queue: whom to ask, what answers mean."""

from __future__ import annotations

from collections.abc import Mapping

import google_crc32c
import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_metadata import ClusterView
from strata_mq.layout.batch import BatchView, OutgoingMessage, PartKey
from strata_storage.base.directory import Directory
from strata_storage.leading.pending.forwarding import ForwardFailed, Forwarding
from strata_storage.leading.pending.resolver import Place
from tests.unit.storage.waiting_leader import id_of

TOPIC_ID, QUEUE, DESTINATION = 7, 2, 5
KEY = PartKey(TOPIC_ID, QUEUE, 0, 4)


Answers = Mapping[str, pb.GroupResult | pb.AppendResponse | None]


class FakeChannels:
    """Nodes by endpoint: each answers with what the test set, or is down."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.requests: list[pb.AppendRequest] = []
        self._endpoint = ""

    def get(self, endpoint: str) -> FakeChannels:
        self._endpoint = endpoint
        return self

    async def call(
        self, method: str, request: pb.AppendRequest, response_type: object, *, timeout_s: float
    ) -> pb.AppendResponse:
        self.asked.append(self._endpoint)
        self.requests.append(request)
        answer = self.answers[self._endpoint]
        if answer is None:
            raise AngeliaError(UNAVAILABLE, "down")
        if isinstance(answer, pb.AppendResponse):
            return answer
        return pb.AppendResponse(results=[answer])


def view() -> ClusterView:
    """Three nodes hold the destination; the queue moved there, then on to raft group 6."""
    made = ClusterView()
    nodes = [
        meta.Node(node_id=name, kind=meta.NODE_KIND_STORAGE, endpoints=[name]) for name in "abc"
    ]
    replicas = [meta.Replica(replica_id=at, node_id=name) for at, name in enumerate("abc", 1)]
    override = meta.QueueOverride(
        topic_id=TOPIC_ID,
        queue=QUEUE,
        epochs=[meta.Epoch(epoch=1, raft_group=DESTINATION), meta.Epoch(epoch=2, raft_group=6)],
    )
    for change in (
        *(meta.Change(node=node) for node in nodes),
        meta.Change(raft_group=meta.RaftGroup(raft_group=DESTINATION, replicas=replicas)),
        meta.Change(queue_override=override),
        meta.Change(slots=meta.SlotRange(first_slot=10, slot_count=2, raft_group=8)),
        meta.Change(topic=meta.Topic(namespace="n", name="t", topic_id=TOPIC_ID, queue_count=6)),
    ):
        made.apply(meta.WatchResponse(revision=1, changes=[change]))
    return made


def forwarding(channels: FakeChannels) -> Forwarding:
    cluster = view()
    return Forwarding(cluster, Directory(cluster), channels)  # type: ignore[arg-type]


def messages(*bodies: bytes) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(body, google_crc32c.value(body), 0, 0, id_of(body), 1, 0, ())
        for body in bodies
    ]


def refused(outcome: pb.Outcome.ValueType) -> pb.GroupResult:
    return pb.GroupResult(refusal=pb.Refusal(outcome=outcome, reason="no"))


def stored(base_offset: int, *known: pb.DuplicateMessage) -> pb.GroupResult:
    part = pb.PartResult(
        queue=QUEUE, base_offset=base_offset, duplicates=known, outcome=pb.OUTCOME_OK
    )
    return pb.GroupResult(parts=[part])


def test_a_queue_is_looked_for_where_its_last_epoch_is() -> None:
    """The metadata knows of later moves; without it the seal's destination is all there is."""
    forwarder = forwarding(FakeChannels({}))
    assert forwarder.holder(TOPIC_ID, QUEUE, 0, DESTINATION) == 6
    assert forwarder.holder(TOPIC_ID, QUEUE + 1, 0, DESTINATION) == DESTINATION


def test_a_queue_that_left_with_its_slot_is_where_the_slot_is() -> None:
    """One that did not follow its slot is named; of slots without an owner nothing is known."""
    forwarder = forwarding(FakeChannels({}))
    assert forwarder.holder(TOPIC_ID, QUEUE + 1, 11 - QUEUE - 1, 0) == 8
    assert forwarder.holder(TOPIC_ID, QUEUE, 11 - QUEUE, 0) == 6
    assert forwarder.holder(TOPIC_ID, QUEUE + 1, 100, 0) == 0


async def test_nodes_are_asked_until_one_leads() -> None:
    """One that is down or follows is passed; what was stored before is where it was."""
    known = pb.DuplicateMessage(ordinal=1, queue=3, offset=9)
    channels = FakeChannels(
        {"a": None, "b": refused(pb.OUTCOME_NOT_LEADER), "c": stored(40, known)}
    )
    places = await forwarding(channels).forward(DESTINATION, KEY, messages(b"0", b"1", b"2"))
    assert channels.asked == ["a", "b", "c"]
    assert places == [
        Place(TOPIC_ID, QUEUE, 40),
        Place(TOPIC_ID, 3, 9),
        Place(TOPIC_ID, QUEUE, 41),
    ]


async def test_the_append_may_be_repeated() -> None:
    """It says so, and is nobody's numbered batch: ids alone tell repeats."""
    channels = FakeChannels({"a": stored(0), "b": None, "c": None})
    await forwarding(channels).forward(DESTINATION, KEY, messages(b"0", b"1"))
    (request,) = channels.requests
    (batch,) = request.batches
    assert (request.broker_boot_id, batch.raft_group, batch.may_repeat) == (0, DESTINATION, True)
    part = BatchView(batch.batch, google_crc32c.value).parts[0]
    # The topic has more queues than when the messages were stored.
    assert (part.key, part.count) == (KEY._replace(queue_count=6), 2)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        refused(pb.OUTCOME_NOT_LEADER),
        refused(pb.OUTCOME_DISK_FULL),
        pb.GroupResult(parts=[pb.PartResult(outcome=pb.OUTCOME_REHASHED)]),
        pb.GroupResult(),
        pb.GroupResult(parts=[pb.PartResult(outcome=99)]),  # type: ignore[arg-type]
        pb.AppendResponse(),
    ],
)
async def test_without_a_confirmation_it_failed(
    answer: pb.GroupResult | pb.AppendResponse | None,
) -> None:
    """Nobody leads, the disk is full, message groups left, or the answer is odd: try later."""
    channels = FakeChannels({"a": answer, "b": answer, "c": answer})
    with pytest.raises(ForwardFailed):
        await forwarding(channels).forward(DESTINATION, KEY, messages(b"0"))


@pytest.mark.parametrize("outcome", [pb.OUTCOME_SEALED, pb.OUTCOME_WRONG_GROUP])
async def test_a_raft_group_without_the_queue_tells_what_it_has(
    outcome: pb.Outcome.ValueType,
) -> None:
    """It may have stored some before the queue left; the others are not there."""
    known = pb.DuplicateMessage(ordinal=1, queue=QUEUE, offset=9)
    part = pb.PartResult(queue=QUEUE, duplicates=[known], outcome=outcome)
    channels = FakeChannels(dict.fromkeys("abc", pb.GroupResult(parts=[part])))
    places = await forwarding(channels).forward(DESTINATION, KEY, messages(b"0", b"1", b"2"))
    assert places == [None, Place(TOPIC_ID, QUEUE, 9), None]


async def test_an_unknown_raft_group_is_a_failure() -> None:
    """The metadata has not told of it yet."""
    with pytest.raises(ForwardFailed):
        await forwarding(FakeChannels({})).forward(99, KEY, messages(b"0"))
