"""Places where a pop would find nothing, as long as their storage nodes have not told otherwise.

A pop that leaves nothing behind asks its node to tell, once, when there is something again; until
then the place is *quiet* and no receive looks there (rule 35). Invariants:
- what a node tells while somebody looks is not forgotten: the answer of that look makes nothing
  quiet, however the two overtake one another;
- a place is quiet only while the node that promised to tell is believed to lead its raft group and
  the stream on which it would tell is open;
- a place is quiet for `max_quiet_ms` at most, whatever a node promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.storage_client.leaders import LeaderMap
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# Between two searches for places that were quiet for too long.
_SWEEP_S = 1.0


class ConsumerPlace(NamedTuple):
    """Where a pop takes messages for a consumer group; queue -1: any queue of the raft group."""

    raft_group: int
    topic_id: int
    consumer_group_id: int
    queue: int


OnNews = Callable[[ConsumerPlace | None], None]
"""Told of a place that may have messages now; None: of many."""


class LostPromises(NamedTuple):
    """Promises to tell that nobody keeps any more: all of a node, or all for a raft group.

    Attributes:
        node: whose stream ended; "": of no node.
        raft_group: the one that has another leader; None: none.
    """

    node: str = ""
    raft_group: int | None = None

    def include(self, raft_group: int, node: str) -> bool:
        """Whether the promise of a node for a raft group is one of them."""
        return node == self.node if self.node else raft_group == self.raft_group


OnLost = Callable[[LostPromises], None]
"""Told of promises that are lost: nobody knows any more whether their places are quiet."""


class _Quiet(NamedTuple):
    node: str
    until_s: float


class QuietPlaces:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        leaders: LeaderMap,
        config: StorageClientSection,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._leaders = leaders
        self._max_places = config.max_quiet_places
        self._max_quiet_s = config.max_quiet_ms / 1000
        self._clock = clock
        self._last_stream = 0
        # node -> number of its open stream
        self._streams: dict[str, int] = {}
        # raft group -> its quiet places
        self._quiet: dict[int, dict[ConsumerPlace, _Quiet]] = {}
        self._count = 0
        self._sweep_at_s = 0.0
        # Looks under way, by raft group and place.
        self._looks: dict[int, dict[ConsumerPlace, dict[Look, None]]] = {}
        self._listeners: list[OnNews] = []
        self._on_lost: list[OnLost] = []
        leaders.on_leader(self._led)
        metrics.gauge("strata_broker_quiet_places", lambda: self._count)

    def __len__(self) -> int:
        return self._count

    def on_news(self, listener: OnNews) -> None:
        """Call back when a place may have messages that it had not."""
        self._listeners.append(listener)

    def on_lost(self, listener: OnLost) -> None:
        """Call back when nobody reports some places any more.

        The listener has to know which places relied on that: those that were quiet for too long
        may have made room for others. Looks that are under way settle nothing then.
        """
        self._on_lost.append(listener)

    @property
    def max_quiet_s(self) -> float:
        """The time for which a place is quiet at most."""
        return self._max_quiet_s

    @property
    def max_places(self) -> int:
        """Most quiet places."""
        return self._max_places

    def quiet_until_s(self, place: ConsumerPlace) -> float:
        """Return until when there is nothing to look for at a place; 0: there may be now."""
        quiet = self._quiet.get(place.raft_group, {}).get(place)
        if quiet is None or quiet.until_s <= self._clock.monotonic_s():
            return 0.0
        return quiet.until_s if self._leaders.node_of(place.raft_group) == quiet.node else 0.0

    def forget(self, place: ConsumerPlace) -> None:
        """Let a place be looked at, quiet or not."""
        self._drop(place)

    def look(self, place: ConsumerPlace) -> Look:
        """Return `with` around a pop at a place."""
        return Look(self, place)

    # Reported by nodes

    def next_stream(self) -> int:
        """Return the number of a stream that is about to be opened."""
        self._last_stream += 1
        return self._last_stream

    def opened(self, node: str, stream: int) -> None:
        """A node has answered on a stream: pops may name it."""
        self._streams[node] = stream

    def closed(self, node: str) -> None:
        """A node's stream ended: what it would have told is unknown."""
        if self._streams.pop(node, None) is None:
            return
        lost = [
            place
            for places in self._quiet.values()
            for place, quiet in places.items()
            if quiet.node == node
        ]
        self._lose(lost, LostPromises(node=node))

    def told(self, places: Iterable[storage_pb2.DeliverablePlace]) -> None:
        """A node has told that there may be messages."""
        for one in places:
            place = ConsumerPlace(one.raft_group, one.topic_id, one.consumer_group_id, one.queue)
            for look in self._looks.get(place.raft_group, {}).get(place, ()):
                look.told = True
            self._drop(place)
            self._tell(place)

    def stream_of(self, node: str) -> int:
        """Return the number of a node's open stream, 0: it has none."""
        return self._streams.get(node, 0)

    def leader_of(self, raft_group: int) -> str:
        """Return the node that is believed to lead a raft group, "": none is known."""
        return self._leaders.node_of(raft_group) or ""

    def _led(self, raft_group: int, leader: str) -> None:
        """Another node leads: nobody knows what it has."""
        for looks in self._looks.get(raft_group, {}).values():
            for look in looks:
                look.told = True
        lost = list(self._quiet.get(raft_group, ()))
        self._lose(lost, LostPromises(raft_group=raft_group))

    def _lose(self, places: Sequence[ConsumerPlace], promises: LostPromises) -> None:
        for place in places:
            self._drop(place)
        self._tell(None)
        for listener in self._on_lost:
            listener(promises)

    # Looks

    def begin(self, look: Look) -> None:
        """Take in that somebody looks at a place."""
        place = look.place
        self._looks.setdefault(place.raft_group, {}).setdefault(place, {})[look] = None

    def end(self, look: Look) -> None:
        """Take in that a look is over."""
        place = look.place
        by_place = self._looks[place.raft_group]
        del by_place[place][look]
        if not by_place[place]:
            del by_place[place]
            if not by_place:
                del self._looks[place.raft_group]

    def note(self, place: ConsumerPlace, node: str) -> bool:
        """Make a place quiet, if there is room."""
        places = self._quiet.get(place.raft_group)
        if places is None or place not in places:
            if self._count >= self._max_places:
                self._sweep()
            if self._count >= self._max_places:
                return False
            self._count += 1
            places = self._quiet.setdefault(place.raft_group, {})
        places[place] = _Quiet(node, self._clock.monotonic_s() + self._max_quiet_s)
        return True

    def _drop(self, place: ConsumerPlace) -> None:
        places = self._quiet.get(place.raft_group)
        if places is None or places.pop(place, None) is None:
            return
        self._count -= 1
        if not places:
            del self._quiet[place.raft_group]

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._sweep_at_s:
            return
        self._sweep_at_s = now_s + _SWEEP_S
        for places in list(self._quiet.values()):
            for place in [place for place, quiet in places.items() if quiet.until_s <= now_s]:
                self._drop(place)

    def _tell(self, place: ConsumerPlace | None) -> None:
        for listener in self._listeners:
            listener(place)


class Look:
    """One pop at a place; see `QuietPlaces.look`.

    Attributes:
        told: the node has told of the place since the look began.
        node: the node that is asked.
    """

    __slots__ = ("_places", "_stream", "node", "place", "told")

    def __init__(self, places: QuietPlaces, place: ConsumerPlace) -> None:
        self._places = places
        self.place = place
        self.told = False
        self.node = ""
        self._stream = 0

    def asks(self, node: str) -> int:
        """Take in that a node is asked; return the stream on which it is to tell, 0: none."""
        self.node, self._stream = node, self._places.stream_of(node)
        return self._stream

    def asks_leader(self) -> int:
        """Do the same for the node that is believed to lead the place's raft group."""
        return self.asks(self._places.leader_of(self.place.raft_group))

    def settle(self, told_later: bool) -> bool:
        """Take in an answer; return whether there is nothing to look for from now on."""
        return self.is_promised(told_later) and self._places.note(self.place, self.node)

    def is_promised(self, told_later: bool) -> bool:
        """Take in an answer; return whether the node will tell of whatever comes from now on."""
        if not told_later or self.told or not self._stream:
            return False
        # Else it would tell on a stream that is no more.
        return self._places.stream_of(self.node) == self._stream

    def __enter__(self) -> Look:
        self._places.begin(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._places.end(self)
