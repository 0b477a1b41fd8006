"""Reads that replicas share: when they are spread, over whom, and what happens when one cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, UNAVAILABLE, AngeliaError
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.replica_reads import MessagePlace, ReadSpread, ReplicaReads
from strata_mq.requests.errors import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

NODES = ("a", "b", "c")
GROUP, TOPIC = 1, 7
CONFIG = StorageClientSection(
    spread_from_groups=3, spread_above_bytes_per_s=1_000, max_spread_topics=4
)
PLACES = [MessagePlace(0, offset, 100) for offset in range(4)]


class FakeNode:
    """A storage node that has messages of some offsets."""

    def __init__(self, name: str, has: range | None = range(10)) -> None:
        self.name, self.has = name, has
        self.failure = UNAVAILABLE if has is None else ""
        # How many messages it gives beyond those that were asked for.
        self.surplus = 0

    async def call(
        self, method: str, request: Message, response_type: type[Any], *, timeout_s: float
    ) -> Any:
        assert method.endswith("/ReadMessages")
        assert isinstance(request, storage_pb2.ReadMessagesRequest)
        assert request.applied_index == 50
        if self.failure:
            raise AngeliaError(self.failure, "gone")
        assert self.has is not None
        if not self.has:
            return response_type(refusal=storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_READY))
        return response_type(
            messages=[
                b"%s-%d" % (self.name.encode(), offset) if offset in self.has else b""
                for offset in request.offsets
            ][: len(request.offsets) + min(self.surplus, 0)]
            + [b"odd"] * self.surplus
        )

    async def stream(self, *_: object) -> AsyncIterator[Any]:
        raise AssertionError("nothing is streamed")
        yield


class FakeTier:
    """Nodes by name; one of them answers for the leader."""

    def __init__(self) -> None:
        self.nodes = {name: FakeNode(name) for name in NODES}
        self.leader: FakeNode | None = FakeNode("leader")

    def to(self, node_id: str) -> Any:
        return self.nodes[node_id]

    def on_unreadable(self, listener: Callable[[int], None]) -> None:
        self.tell_unreadable = listener

    async def call(
        self, raft_group: int, rpc: str, request: Message, response_type: type[Any]
    ) -> Any:
        if self.leader is None:
            raise RequestError(Code.PROXY_TIMEOUT, "nobody leads")
        return await self.leader.call(f"/{rpc}", request, response_type, timeout_s=1.0)


def view_of(learners: int = 0) -> MetadataView:
    """One raft group with voters on a, b, c, the last `learners` of them learners."""
    view = MetadataView()
    changes = [
        meta_pb2.Change(
            node=meta_pb2.Node(
                node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, state=meta_pb2.NODE_STATE_UP
            )
        )
        for node_id in NODES
    ]
    row = meta_pb2.RaftGroup(raft_group=GROUP)
    for number, node_id in enumerate(NODES, start=1):
        is_learner = number > len(NODES) - learners
        row.replicas.add(replica_id=number, node_id=node_id, learner=is_learner)
        (row.membership.learners if is_learner else row.membership.voters).append(number)
    changes.append(meta_pb2.Change(raft_group=row))
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    return view


def spread_of(view: MetadataView, clock: ManualClock) -> ReadSpread:
    """Return what chooses, on a cluster where b leads."""
    leaders = LeaderMap(view, CONFIG, clock)
    leaders.leads("b", [GROUP])
    return ReadSpread(view, leaders, CONFIG, clock=clock, metrics=Metrics.disabled())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def spread(clock: ManualClock) -> ReadSpread:
    return spread_of(view_of(), clock)


@pytest.fixture
def tier() -> FakeTier:
    return FakeTier()


@pytest.fixture
def reads(spread: ReadSpread, tier: FakeTier) -> ReplicaReads:
    client: Any = tier
    return ReplicaReads(spread, client, client, config=CONFIG, metrics=Metrics.disabled())


async def test_a_leader_whose_disk_cannot_read_is_asked_for_places_only(
    reads: ReplicaReads, spread: ReadSpread, tier: FakeTier, clock: ManualClock
) -> None:
    """The others read the bytes, for a while; what is committed is the same on each replica."""
    assert not spread.begin(GROUP, TOPIC, 1)
    tier.tell_unreadable(GROUP)
    assert spread.begin(GROUP, TOPIC, 1)
    assert {spread.choose(GROUP, 10) for _ in range(4)} == {"a", "c"}
    found = await reads.read(GROUP, TOPIC, 50, PLACES)
    assert all(message.startswith((b"a-", b"c-")) for message in found)
    clock.advance(CONFIG.unreadable_leader_ms / 1_000)
    assert not spread.begin(GROUP, TOPIC, 1)
    assert "b" in {spread.choose(GROUP, 10) for _ in range(4)}


def test_the_next_leader_reads_by_itself(clock: ManualClock) -> None:
    """It is the disk of the old one that failed."""
    view = view_of()
    leaders = LeaderMap(view, CONFIG, clock)
    leaders.leads("b", [GROUP])
    spread = ReadSpread(view, leaders, CONFIG, clock=clock, metrics=Metrics.disabled())
    spread.unreadable(GROUP)
    leaders.leads("c", [GROUP])
    assert not spread.begin(GROUP, TOPIC, 1)
    assert "b" not in {spread.choose(GROUP, 10) for _ in range(6)}


def test_a_topic_that_many_groups_read_is_spread(spread: ReadSpread, clock: ManualClock) -> None:
    """From the third consumer group on; no more when nobody has read for two windows."""
    assert [spread.begin(GROUP, TOPIC, group) for group in (1, 2, 1, 3, 1)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not spread.begin(GROUP, TOPIC + 1, 1), "another topic is not meant"
    clock.advance(11)
    assert spread.begin(GROUP, TOPIC, 1), "the window before counts"
    clock.advance(21)
    assert not spread.begin(GROUP, TOPIC, 1)


def test_a_topic_of_which_much_is_read_is_spread(spread: ReadSpread) -> None:
    """One consumer group is enough above the limit per second."""
    spread.begin(GROUP, TOPIC, 1)
    spread.count(GROUP, TOPIC, 9_999, from_leader=False)
    assert not spread.begin(GROUP, TOPIC, 1)
    spread.count(GROUP, TOPIC, 1, from_leader=False)
    assert spread.begin(GROUP, TOPIC, 1)


def test_read_replicas_are_used_from_the_first_read_on(clock: ManualClock) -> None:
    """An operator who adds one wants it to be read from."""
    spread = spread_of(view_of(learners=1), clock)
    assert spread.begin(GROUP, TOPIC, 1)
    assert {spread.choose(GROUP, 10) for _ in range(3)} == set(NODES)


def test_topics_beyond_the_limit_are_read_from_the_leader(spread: ReadSpread) -> None:
    """The table of topics does not grow without bound."""
    for topic in range(10):
        for group in range(5):
            assert spread.begin(GROUP, topic, group) == (topic < 4 and group >= 2)


def test_every_replica_gives_the_same_share_of_the_bytes(spread: ReadSpread) -> None:
    """The replica that gave the fewest bytes is next, also when sizes differ much."""
    sizes: Counter[str] = Counter()
    for number in range(600):
        size = 50_000 if number % 7 == 0 else 1_000
        sizes[spread.choose(GROUP, size)] += size
    assert max(sizes.values()) <= 0.36 * sizes.total()


def test_what_the_leader_gave_by_itself_is_its_share(spread: ReadSpread) -> None:
    """Before reads are spread it gives all; after that the others catch up with it."""
    spread.count(GROUP, TOPIC, 20, from_leader=True)
    assert [spread.choose(GROUP, 10) for _ in range(5)] == ["a", "c", "a", "c", "a"]


def test_a_replica_that_is_new_owes_nothing(clock: ManualClock) -> None:
    """It gets its share from now on, not what the others gave before it came."""
    view = view_of()
    spread = spread_of(view, clock)
    for _ in range(30):
        spread.choose(GROUP, 1_000)
    row = meta_pb2.RaftGroup()
    known = view.raft_group(GROUP)
    assert known is not None
    row.CopyFrom(known)
    row.replicas.add(replica_id=4, node_id="d", learner=True)
    row.membership.learners.append(4)
    up = meta_pb2.Node(node_id="d", kind=meta_pb2.NODE_KIND_STORAGE, state=meta_pb2.NODE_STATE_UP)
    changes = [meta_pb2.Change(node=up), meta_pb2.Change(raft_group=row)]
    view.apply(meta_pb2.WatchResponse(revision=2, changes=changes))
    chosen = Counter(spread.choose(GROUP, 1_000) for _ in range(40))
    assert chosen == {"a": 10, "b": 10, "c": 10, "d": 10}


def test_a_replica_that_failed_is_left_alone_for_a_while(
    spread: ReadSpread, clock: ManualClock
) -> None:
    """With all of them failed nobody but the leader is left."""
    spread.failed("b")
    assert {spread.choose(GROUP, 10) for _ in range(6)} == {"a", "c"}
    spread.failed("a")
    spread.failed("c")
    assert not spread.choose(GROUP, 10)
    clock.advance(3.1)
    assert spread.choose(GROUP, 10)


async def test_messages_come_from_a_replica_in_order(reads: ReplicaReads) -> None:
    """Each answer from one replica, in turn."""
    answers = [await reads.read(GROUP, TOPIC, 50, PLACES) for _ in range(3)]
    assert answers == [[b"%s-%d" % (name, at) for at in range(4)] for name in (b"a", b"b", b"c")]


async def test_what_a_replica_lacks_comes_from_the_leader(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """Single messages, all of them when it is not that far, and all when it is gone."""
    tier.nodes = {
        "a": FakeNode("a", range(2)),
        "b": FakeNode("b", range(0)),
        "c": FakeNode("c", None),
    }
    assert await reads.read(GROUP, TOPIC, 50, PLACES) == [b"a-0", b"a-1", b"leader-2", b"leader-3"]
    # Nobody but the leader after two tries; both are left alone.
    assert await reads.read(GROUP, TOPIC, 50, PLACES) == [b"leader-%d" % at for at in range(4)]
    assert reads.spread.choose(GROUP, 1) == "a"


async def test_what_neither_a_replica_nor_the_leader_can_read_comes_from_a_third(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """A leader with a failing disk may be among those that are chosen, too."""
    tier.nodes["a"] = FakeNode("a", range(1))
    tier.leader = FakeNode("leader", range(2))
    assert await reads.read(GROUP, TOPIC, 50, PLACES) == [b"a-0", b"leader-1", b"c-2", b"c-3"]


@pytest.mark.parametrize("surplus", [-1, 1])
async def test_an_answer_of_another_length_is_none(
    reads: ReplicaReads, tier: FakeTier, surplus: int
) -> None:
    """A replica that answers so is passed over; a leader that does fails this request only."""
    tier.nodes["a"].surplus = surplus
    assert await reads.read(GROUP, TOPIC, 50, PLACES) == [b"b-%d" % at for at in range(4)]
    tier.nodes["b"].surplus = tier.nodes["c"].surplus = surplus
    assert tier.leader is not None
    assert await reads.read(GROUP, TOPIC, 50, PLACES) == [b"leader-%d" % at for at in range(4)]
    tier.leader.surplus = surplus
    with pytest.raises(RequestError) as refused:
        await reads.read(GROUP, TOPIC, 50, PLACES)
    assert refused.value.code is Code.INTERNAL_SERVER_ERROR
    assert await fill(reads, popped_at((0, 0)), ordered=False) == ([], [], [(0, 0)])


async def test_another_replica_is_asked_before_the_leader(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """One that is late is not left alone: others have given less than it was asked for."""
    tier.nodes["a"].failure = DEADLINE_EXCEEDED
    answers = [await reads.read(GROUP, TOPIC, 50, PLACES) for _ in range(3)]
    assert [answer[0] for answer in answers] == [b"b-0", b"c-0", b"b-0"]
    assert reads.spread.choose(GROUP, 1) == "c"


def popped_at(*places: tuple[int, int]) -> storage_pb2.PopResponse:
    """Return an answer of places at (queue, offset)."""
    popped = storage_pb2.PopResponse(applied_index=50)
    for queue, offset in places:
        popped.messages.add(queue=queue, offset=offset, message_length=100)
    return popped


async def fill(reads: ReplicaReads, popped: storage_pb2.PopResponse, *, ordered: bool) -> object:
    """Fill an answer; return what it has and what was left out of it, as (queue, offset)."""
    left = await reads.fill_popped(GROUP, TOPIC, popped, ordered=ordered)
    for one in popped.messages:
        assert one.message.endswith(b"-%d" % one.offset)
    return tuple(
        [(one.queue, one.offset) for one in some]
        for some in (popped.messages, left.unreadable, left.others)
    )


async def test_a_popped_message_that_nobody_has_is_put_off(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """The others are delivered; with no leader to ask all are to be released at once."""
    tier.nodes = {name: FakeNode(name, range(3)) for name in NODES}
    tier.leader = FakeNode("leader", range(3))
    places = [(0, offset) for offset in (3, 0, 1, 2)]
    filled = await fill(reads, popped_at(*places), ordered=False)
    assert filled == (places[1:], places[:1], [])
    tier.leader = None
    tier.nodes = {name: FakeNode(name, None) for name in NODES}
    assert await fill(reads, popped_at(*places), ordered=False) == ([], [], places)


async def test_nothing_of_a_queue_is_given_behind_a_missing_message(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """It may be of the same message group; messages before it and of other queues are given."""
    has = range(1, 9)
    tier.nodes = {name: FakeNode(name, has) for name in NODES}
    tier.leader = FakeNode("leader", has)
    places = [(0, 1), (0, 0), (1, 4), (0, 2), (0, 9), (0, 3)]
    filled = await fill(reads, popped_at(*places), ordered=True)
    assert filled == ([(0, 1), (1, 4)], [(0, 0), (0, 9)], [(0, 2), (0, 3)])


async def test_a_pull_is_told_when_a_message_is_missing(
    reads: ReplicaReads, tier: FakeTier
) -> None:
    """It asks the leader anew then, which says what is wrong."""
    fetched = storage_pb2.FetchResponse(applied_index=50)
    for offset in (8, 9):
        fetched.messages.add(queue=0, offset=offset, message_length=100)
    assert await reads.fill_fetched(GROUP, TOPIC, fetched)
    fetched.messages.add(queue=0, offset=10, message_length=100)
    assert not await reads.fill_fetched(GROUP, TOPIC, fetched)
