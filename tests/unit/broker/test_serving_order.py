"""Levels of a topic of type PRIORITY: which is served next, and what lower ones get (ADR 0051)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.receives.serving_order import Ask, ServingOrder, ServingOrders
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.metrics import Metrics

TOPIC, GROUP, LEVELS = 7, 5, 8
LOOK_S = 0.1


def place_of(raft_group: int, queue: int = ANY_QUEUE) -> ConsumerPlace:
    return ConsumerPlace(raft_group, TOPIC, GROUP, queue)


class RaftGroups:
    """Raft groups with messages by level, and one broker that receives; times are of a test."""

    def __init__(self, *groups: int, percent: int = 0, **config: int) -> None:
        section = ReceiveSection.model_validate({"lower_levels_percent": percent} | config)
        self.orders = ServingOrders(section, Metrics.disabled())
        self.queues: dict[ConsumerPlace, dict[int, deque[int]]] = {
            place_of(group): {level: deque() for level in range(LEVELS)} for group in groups
        }
        self.now_s = 0.0
        self.asks: list[Ask] = []
        self.sent = 0
        self.receives = 0

    def send(self, raft_group: int, level: int, count: int = 1) -> None:
        for _ in range(count):
            self.queues[place_of(raft_group)][level].append(self.sent)
            self.sent += 1

    def receive(self, most: int = 1) -> list[tuple[int, int]]:
        """Receive once; return (level, number of the message) of each message.

        Each receive begins at another place, as a broker's does.
        """
        places = deque(self.queues)
        places.rotate(-self.receives)
        self.receives += 1
        levels = self.orders.begin(
            (TOPIC, GROUP), tuple(places), queue_count=LEVELS, max_messages=most
        )
        try:
            while (ask := levels.next(self.now_s)) is not None:
                self.asks.append(ask)
                got, response = self._pop(ask, most)
                levels.answered(ask.place, response, self.now_s)
                if got:
                    return got
            return []
        finally:
            levels.end()

    def _pop(self, ask: Ask, most: int) -> tuple[list[tuple[int, int]], storage_pb2.PopResponse]:
        request = storage_pb2.PopRequest(max_messages=most)
        ask.fill(request)
        got: list[tuple[int, int]] = []
        queues = self.queues[ask.place]
        for level in range(request.levels.highest, request.levels.lowest - 1, -1):
            while queues[level] and len(got) < request.max_messages:
                got.append((level, queues[level].popleft()))
        response = storage_pb2.PopResponse()
        for level, number in got:
            response.messages.add(queue=level, offset=number)
        for level, queue in queues.items():
            response.ready_levels |= (1 << level) * bool(queue)
        return got, response

    def highest(self) -> int:
        return max(
            (level for queues in self.queues.values() for level in queues if queues[level]),
            default=-1,
        )


def levels_of(messages: Sequence[tuple[int, int]]) -> list[int]:
    return [level for level, _ in messages]


def test_the_highest_level_of_all_raft_groups_comes_first() -> None:
    """One by one, wherever a level is."""
    groups = RaftGroups(1, 2, 3)
    for level in range(LEVELS):
        groups.send(1 + level % 3, level)
    got = [levels_of(groups.receive()) for _ in range(LEVELS)]
    assert got == [[level] for level in range(LEVELS - 1, -1, -1)]
    assert groups.receive() == []


def test_an_answer_is_filled_with_lower_levels_that_no_other_raft_group_exceeds() -> None:
    """A raft group of which nothing is known may have the highest level; one that told has not."""
    groups = RaftGroups(1, 2)
    for level in (7, 6, 5, 2):
        groups.send(1, level)
    groups.send(2, 5)
    assert [levels_of(groups.receive(32)) for _ in range(4)] == [[7], [6, 5], [5], [2]]


def test_a_backlog_costs_one_pop_per_receive() -> None:
    """The broker knows what raft groups have; it looks anew only after `level_look_ms`."""
    groups = RaftGroups(1, 2)
    groups.send(1, 3, 100)
    groups.send(2, 1, 100)
    groups.receive()
    groups.asks.clear()
    for _ in range(50):
        assert levels_of(groups.receive()) == [3]
    assert len(groups.asks) == 50
    groups.now_s += LOOK_S
    groups.receive()
    assert len(groups.asks) <= 53


def test_a_higher_message_elsewhere_waits_for_one_look_at_most() -> None:
    """A raft group with a backlog does not tell of it; it is asked when its answer is old."""
    groups = RaftGroups(1, 2)
    groups.send(1, 3, 100)
    groups.send(2, 1, 100)
    assert levels_of(groups.receive()) == [3]
    groups.send(2, 7)
    groups.now_s += LOOK_S
    assert levels_of(groups.receive()) == [7]


def test_places_of_single_queues_count_as_their_level() -> None:
    """A queue that moved is asked by its number: for nothing above it."""
    groups = RaftGroups(1)
    moved = place_of(2, queue=4)
    groups.queues[moved] = {level: deque() for level in range(LEVELS)}
    groups.queues[moved][4].append(0)
    groups.send(1, 6)
    groups.send(1, 2)
    assert [levels_of(groups.receive()) for _ in range(3)] == [[6], [4], [2]]
    assert [ask.place.raft_group for ask in groups.asks[:2]] == [1, 2][: len(groups.asks[:2])]


def test_a_raft_group_that_cannot_be_asked_is_left_out() -> None:
    """Others are served; the receive ends."""
    groups = RaftGroups(1, 2)
    groups.send(2, 3)
    levels = groups.orders.begin(
        (TOPIC, GROUP), tuple(groups.queues), queue_count=LEVELS, max_messages=1
    )
    ask = levels.next(0.0)
    assert ask is not None and ask.place == place_of(1)
    levels.answered(ask.place, None, 0.0)
    ask = levels.next(0.0)
    assert ask == Ask(place_of(2), 0, LEVELS - 1, 0)
    levels.answered(ask.place, None, 0.0)
    assert levels.next(0.0) is None
    levels.end()


def test_messages_that_others_take_do_not_keep_a_receive_busy() -> None:
    """A raft group that always has something and never gives it is asked a few times."""
    groups = RaftGroups(1)
    levels = groups.orders.begin(
        (TOPIC, GROUP), tuple(groups.queues), queue_count=LEVELS, max_messages=1
    )
    asked = 0
    while (ask := levels.next(0.0)) is not None:
        levels.answered(ask.place, storage_pb2.PopResponse(ready_levels=8), 0.0)
        asked += 1
    assert asked == 4


@given(
    percent=st.integers(1, 50),
    most=st.integers(1, 32),
    top=st.integers(1, LEVELS - 1),
    lower=st.sets(st.integers(0, LEVELS - 2), min_size=1),
    spread=st.integers(1, 3),
)
def test_lower_levels_get_their_share_of_a_backlog(
    percent: int, most: int, top: int, lower: set[int], spread: int
) -> None:
    """At any time, but for the last receive and a quarter of one; the highest one has the rest."""
    lower = {level for level in lower if level < top} or {0}
    groups = RaftGroups(*range(1, spread + 1), percent=percent)
    groups.send(1, top, 6_000)
    for level in lower:
        groups.send(1 + level % spread, level, 2_000)
    counts: Counter[int] = Counter()
    while counts.total() < 3_000:
        counts.update(levels_of(groups.receive(most)))
        total, low = counts.total(), counts.total() - counts[top]
        assert low >= total * percent / 100 - (most / 4 + 1) - most
        assert low <= total * percent / 100 + most + 1
    # Each of them gets some of it.
    wanted = 3_000 * percent / 100 / (4 * top)
    assert all(counts[level] > 0 for level in lower) or wanted < most


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, LEVELS - 1), st.integers(1, 5)), max_size=40
    ),
    st.integers(0, 50),
    st.integers(1, 8),
)
def test_everything_is_delivered_once_and_in_order_within_a_level_and_raft_group(
    sends: list[tuple[int, int, int]], percent: int, most: int
) -> None:
    """With any share; without one no message comes before one of a higher level."""
    groups = RaftGroups(1, 2, 3, percent=percent)
    for raft_group, level, count in sends:
        groups.send(raft_group, level, count)
    order: dict[int, list[int]] = {level: [] for level in range(LEVELS)}
    highest = groups.highest()
    while got := groups.receive(most):
        for level, number in got:
            order[level].append(number)
        if not percent:
            assert got[0][0] == highest
            assert levels_of(got) == sorted(levels_of(got), reverse=True)
        highest = groups.highest()
    assert highest == -1
    assert sorted(number for numbers in order.values() for number in numbers) == list(
        range(groups.sent)
    )


def test_the_share_begins_anew_when_lower_levels_were_empty() -> None:
    """Nothing is owed for times in which nothing waited."""
    groups = RaftGroups(1, percent=10)
    groups.send(1, 5, 200)
    for _ in range(100):
        groups.receive()
    groups.send(1, 2, 10)
    assert [levels_of(groups.receive()) for _ in range(9)] == [[5]] * 9


def test_orders_are_kept_up_to_a_limit() -> None:
    """Those used last."""
    groups = RaftGroups(1, max_serving_orders=2)
    for group in (1, 2, 1, 3):
        groups.orders.begin(
            (TOPIC, group), tuple(groups.queues), queue_count=LEVELS, max_messages=1
        )
    assert list(groups.orders._orders) == [(TOPIC, 1), (TOPIC, 3)]
    assert len(groups.orders) == 2


def test_what_lower_levels_could_not_take_is_not_owed_for_ever() -> None:
    """A level that seems to have messages but gives none for long gets no long run afterwards."""
    order = ServingOrder(share_percent=50, look_s=LOOK_S)
    order.learn(place_of(1), 0b1000_0001, 0.0)
    for _ in range(10_000):
        order.took([7])
    turns = [order.lower_turn(32)[0] for _ in range(1_000)]
    assert sum(turns) == 256
    assert turns[-1] == 0, "the highest level is served again"


def test_a_level_that_this_broker_does_not_know_yet_does_not_end_a_round_without_a_look() -> None:
    """The topic got more queues: a receive that looks nowhere would begin again at once."""
    groups = RaftGroups(1)
    groups.queues[place_of(1)][LEVELS] = deque([0])
    for _ in range(2):
        assert groups.receive() == []
    assert len(groups.asks) == 2
