"""Decides which levels of a topic of type PRIORITY a consumer group is served next (ADR 0051).

The highest level that any raft group has comes first. The last answer of a raft group tells for
`level_look_ms` which levels it has; a place of which nothing is known counts as if it had the
highest level, so it is asked. Lower levels have a share: each message of the highest level adds to
what they are owed while they have messages, and a receive in *their turn* gives it to them.

Pure decisions: no I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.metrics import Metrics

# Pops of one receive at one place: a look, a pop, and what others took meanwhile.
_MAX_POPS_PER_PLACE = 4
# The turn of lower levels begins when they are owed this part of a receive, at least one message.
_TURN_DIVISOR = 4
# Lower levels that could not take their share for long, because of filters for instance, do not get
# all of it afterwards: it would hold up the highest level for as long.
_MAX_OWED = 256.0


class Ask(NamedTuple):
    """One pop of a receive.

    Attributes:
        place: where.
        lowest, highest: levels that it takes from.
        max_messages: 0: as many as the receive may have.
    """

    place: ConsumerPlace
    lowest: int
    highest: int
    max_messages: int

    def fill(self, request: storage_pb2.PopRequest) -> None:
        """Write it into a pop's request."""
        request.levels.CopyFrom(storage_pb2.LevelRange(lowest=self.lowest, highest=self.highest))
        if self.max_messages:
            request.max_messages = self.max_messages


class _Known(NamedTuple):
    bits: int
    until_s: float


class ServingOrder:
    """Knowledge of one consumer group's levels of one topic, at this broker."""

    __slots__ = ("_known", "_look_s", "_next_lower", "_owed", "_per_message", "_top")

    def __init__(self, share_percent: int, look_s: float) -> None:
        self._per_message = share_percent / (100 - share_percent)
        self._look_s = look_s
        self._known: dict[ConsumerPlace, _Known] = {}
        # Messages that lower levels are owed.
        self._owed = 0.0
        # The level that was served as the highest one.
        self._top = 0
        self._next_lower = 0

    def known_bits(self, place: ConsumerPlace, now_s: float) -> int:
        """Return the levels that a place has; 0: that is not known."""
        known = self._known.get(place)
        return known.bits if known is not None and known.until_s > now_s else 0

    def learn(self, place: ConsumerPlace, bits: int, now_s: float) -> None:
        """Take in which levels a place has; none: the next look finds out anew."""
        if bits:
            self._known[place] = _Known(bits, now_s + self._look_s)
        else:
            self._known.pop(place, None)

    def keep(self, places: Sequence[ConsumerPlace]) -> None:
        """Forget all other places."""
        if len(self._known) > len(places):
            kept = set(places)
            self._known = {place: one for place, one in self._known.items() if place in kept}

    def lower_turn(self, max_messages: int) -> tuple[int, int]:
        """Begin a turn of lower levels; return what it takes and where it begins, 0: no turn."""
        begins_at = max(1, max_messages // _TURN_DIVISOR)
        if self._top == 0 or self._owed < begins_at:
            return 0, 0
        taken = min(int(self._owed), max_messages)
        self._owed -= taken
        level = self._next_lower if self._next_lower < self._top else self._top - 1
        self._next_lower = level - 1 if level else self._top - 1
        return taken, level

    def give_back(self, count: int) -> None:
        """Take in that a turn gave less than it could."""
        self._owed += count

    def took(self, levels: Sequence[int]) -> None:
        """Take in what a receive got that was not in the turn of lower levels."""
        self._top = max(levels)
        lower = (1 << self._top) - 1
        if any(known.bits & lower for known in self._known.values()):
            owed = self._owed + levels.count(self._top) * self._per_message
            self._owed = min(owed, _MAX_OWED)
        else:
            self._owed = 0.0

    @property
    def top(self) -> int:
        """The level that was served as the highest one."""
        return self._top


class LevelRound:
    """The pops of one receive, until one has messages.

    Args:
        order: of the consumer group and the topic.
        places: where there may be messages, in the order in which equal places are asked.
        queue_count: of the topic.
        max_messages: of the receive.
        count_lower: counts messages that lower levels got in their turn.
    """

    def __init__(
        self,
        order: ServingOrder,
        places: Sequence[ConsumerPlace],
        *,
        queue_count: int,
        max_messages: int,
        count_lower: Callable[[int], None],
    ) -> None:
        self._order = order
        self._count_lower = count_lower
        self._pops_left = dict.fromkeys(places, _MAX_POPS_PER_PLACE)
        # Answers of the places in this round.
        self._told: dict[ConsumerPlace, int] = {}
        self._all = (1 << queue_count) - 1
        self._highest = queue_count - 1
        self._reserved, level = order.lower_turn(max_messages)
        self._limit = level if self._reserved else self._highest

    def next(self, now_s: float) -> Ask | None:
        """Return where to look next; None: nothing is left to look at."""
        while True:
            mask = (1 << (self._limit + 1)) - 1
            tops = [
                (level, place)
                for place in self._pops_left
                if (level := (self._bits(place, now_s) & mask).bit_length() - 1) >= 0
            ]
            if tops:
                best = max(tops, key=lambda top: top[0])
                lowest = max((level for level, place in tops if place != best[1]), default=0)
                return Ask(best[1], lowest, self._limit, self._reserved)
            if not self._widen():
                return None

    def answered(
        self, place: ConsumerPlace, response: storage_pb2.PopResponse | None, now_s: float
    ) -> None:
        """Take in what a pop brought; None: the place could not be asked."""
        bits = 0 if response is None else response.ready_levels
        self._pops_left[place] -= 1
        if response is None or not self._pops_left[place]:
            del self._pops_left[place]
        self._told[place] = bits
        self._order.learn(place, bits, now_s)
        if response is None or not response.messages:
            return
        if self._reserved:
            given = len(response.messages)
            self._order.give_back(self._reserved - given)
            self._reserved = 0
            self._count_lower(given)
        else:
            self._order.took([leased.queue for leased in response.messages])

    def end(self) -> None:
        """Let a turn that gave nothing come again."""
        if self._reserved:
            self._order.give_back(self._reserved)
            self._reserved = 0

    def _bits(self, place: ConsumerPlace, now_s: float) -> int:
        told = self._told.get(place)
        if told is not None:
            return told
        possible = self._all if place.queue == ANY_QUEUE else 1 << place.queue
        # Levels of a topic that has more queues than is known here are none of this round; a place
        # with nothing else is asked all the same, because a round has to ask somebody.
        return self._order.known_bits(place, now_s) & self._all or possible

    def _widen(self) -> bool:
        """Look at more levels: those below the highest one, then all; False: these were all."""
        if not self._reserved:
            return False
        if self._limit < self._order.top - 1:
            self._limit = self._order.top - 1
        else:
            # Nothing lower waits.
            self._reserved = 0
            self._limit = self._highest
        return True


class ServingOrders:
    """The orders of the consumer groups that receive; those used last, up to a limit."""

    def __init__(self, config: ReceiveSection, metrics: Metrics) -> None:
        self._config = config
        # (topic id, consumer group id) -> order
        self._orders: OrderedDict[tuple[int, int], ServingOrder] = OrderedDict()
        metrics.gauge("strata_broker_serving_orders", lambda: len(self._orders))
        self._lower = metrics.counter("strata_broker_lower_level_messages_total")

    def __len__(self) -> int:
        return len(self._orders)

    def begin(
        self,
        key: tuple[int, int],
        places: Sequence[ConsumerPlace],
        *,
        queue_count: int,
        max_messages: int,
    ) -> LevelRound:
        """Begin the pops of one receive; see `LevelRound`.

        Args:
            key: topic id and consumer group id; one that was forgotten owes nothing.
            places: where there may be messages.
            queue_count: of the topic.
            max_messages: of the receive.
        """
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = ServingOrder(
                self._config.lower_levels_percent, self._config.level_look_ms / 1000
            )
            if len(self._orders) > self._config.max_serving_orders:
                self._orders.popitem(last=False)
        self._orders.move_to_end(key)
        order.keep(places)
        return LevelRound(
            order,
            places,
            queue_count=queue_count,
            max_messages=max_messages,
            count_lower=self._lower.add,
        )
