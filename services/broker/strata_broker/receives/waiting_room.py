"""Parked receives: in lines, of which the first looks for messages and the others only wait.

A line is what receives have in common: topic, consumer group, filter and the queues they take from.
The first receive of a line looks wherever there may be something; so a message does not wake a
thousand receives that find nothing. While looks leave messages behind, more receives of the line
look at the same time, twice as many after each, and one again when there is no more (rule 35).

A client whose receive ended without a message waits on from where it was when it asks again:
with more consumers than messages in the time of a receive, the same ones would get all of them.

Invariants: a receive leaves its line when its time is over, its client has gone or it is cancelled,
and the next one then takes its turn; a line exists only while somebody is in it; a place that is
not quiet and gave nothing is looked at again at a bounded pace; the cost of a turn does not grow
with the receives that wait. News of many places reach the lines some at a time, so that no turn of
the event loop grows with the lines; a receive whose time ends before they reach its line looks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from strata_broker.base.receive_config import ReceiveSection
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace, QuietPlaces
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# A client that asks again so much later has no claim to its place any more.
_KEEP_S = 5.0
# A client with a longer filter keeps no place: it would hold the filter's bytes while it is away.
_MAX_KEPT_FILTER_BYTES = 1_024
# A line remembers at most so many receives for each one that is in it.
_TIDY_FACTOR = 4
# Lines that news of many places reach in one turn of the event loop; each asks about its places.
_LINES_PER_TURN = 50


class LineKey(NamedTuple):
    """Facts that the receives of a line share.

    `target` names what they take from: any queue, a queue, or a broker name.
    """

    topic_id: int
    consumer_group_id: int
    filter_bytes: bytes
    target: Hashable


NextLook = Callable[["Line"], float]
"""Returns when a receive may look next; 0.0: now."""


class _Pause(NamedTuple):
    until_s: float
    length_s: float


class _Kept(NamedTuple):
    since_s: float
    left_s: float


class Seat:
    """One receive in a line; leave it in any case.

    Attributes:
        since_s: since when its client waits for a message.
    """

    __slots__ = ("_looks", "_next_look_s", "_ticket", "_turn", "line", "since_s")

    def __init__(
        self, line: Line, ticket: PopTicket, next_look_s: NextLook, *, since_s: float
    ) -> None:
        self.line = line
        self.since_s = since_s
        self._ticket = ticket
        self._next_look_s = next_look_s
        self._turn: asyncio.Future[bool] | None = None
        self._looks = False
        ticket.on_ended = self._ended

    async def turn(self, timeout_s: float) -> bool:
        """Wait until this receive may look; False: its time is over, or its client has gone."""
        self._stop_looking()
        if self._ticket.ended:
            return False
        running = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = running.create_future()
        self._turn = turn
        try:
            self.line.waits(self)
            self.line.go()
            if turn.done():
                return turn.result()
            # `asyncio.wait` takes a kilobyte more, for each of thousands that wait.
            timer = running.call_later(timeout_s, self._time_over)
            try:
                return await turn
            finally:
                timer.cancel()
        finally:
            self._turn = None

    def leave(self) -> None:
        """Let the next one take its turn."""
        self._ticket.on_ended = None
        self._stop_looking()
        self.line.leave(self)

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn."""
        return self._turn is not None and not self._turn.done()

    def next_look_s(self) -> float:
        """Return when there is something to look for; 0.0: now."""
        return self._next_look_s(self.line)

    def take_turn(self) -> None:
        """Let it look."""
        assert self._turn is not None
        self._looks = True
        self.line.looking += 1
        self._turn.set_result(True)

    def _stop_looking(self) -> None:
        if self._looks:
            self._looks = False
            self.line.looking -= 1

    def _time_over(self) -> None:
        try:
            if self.waits:
                self.line.catch_up()
        finally:
            self._ended()

    def _ended(self) -> None:
        if self.waits:
            assert self._turn is not None
            self._turn.set_result(False)


class Line:
    """See the module docstring.

    Attributes:
        looking: receives that look now.
        unanswered: raft groups that did not answer the last look, and their problems.
    """

    __slots__ = (
        "_last",
        "_pauses",
        "_room",
        "_seats",
        "_timer",
        "_waiting",
        "_width",
        "key",
        "looking",
        "unanswered",
    )

    def __init__(self, room: WaitingRoom, key: LineKey) -> None:
        self._room = room
        self.key = key
        self.looking = 0
        self.unanswered: dict[int, str] = {}
        self._width = 1
        self._seats: set[Seat] = set()
        # (since when, number, seat), the longest wait in front; some wait no more.
        self._waiting: list[tuple[float, int, Seat]] = []
        self._last = 0
        self._pauses: dict[ConsumerPlace, _Pause] = {}
        self._timer: asyncio.TimerHandle | None = None

    def join(self, seat: Seat) -> None:
        """Let a receive in."""
        self._seats.add(seat)

    def waits(self, seat: Seat) -> None:
        """Let a receive wait for its turn."""
        self._last += 1
        heappush(self._waiting, (seat.since_s, self._last, seat))
        if len(self._waiting) > _TIDY_FACTOR * len(self._seats):
            # Their times were over before those of receives in front of them.
            self._waiting = [entry for entry in self._waiting if entry[2].waits]
            heapify(self._waiting)

    def leave(self, seat: Seat) -> None:
        """Let a receive go."""
        self._seats.remove(seat)
        if self._seats:
            self.go()
            return
        self._stop_timer()
        self._room.drop(self)

    def __len__(self) -> int:
        return len(self._seats)

    def go(self) -> None:
        """Let those look who may."""
        self._stop_timer()
        if self._room.reach(self):
            self.hurry(None)
        while self._waiting and self.looking < self._width:
            seat = self._waiting[0][2]
            if not seat.waits:
                heappop(self._waiting)
                continue
            next_look_s = seat.next_look_s()
            if next_look_s > 0.0:
                # Places that the first one skips are of no use to the others either.
                pause_s = max(next_look_s - self._room.clock.monotonic_s(), 0.0)
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(pause_s, self.go)
                return
            heappop(self._waiting)
            seat.take_turn()

    def catch_up(self) -> None:
        """Let those look who may if there are news that have not reached this line yet."""
        if self._room.is_due(self):
            self.go()

    def left_behind(self, *, more: bool) -> None:
        """Take in whether a look left messages behind: then more receives may look."""
        self._width = min(self._width * 2, self._room.max_width) if more else 1

    def paused_until_s(self, place: ConsumerPlace) -> float:
        """Return until when a place is not looked at again; 0.0: it may be."""
        pause = self._pauses.get(place)
        if pause is None or pause.until_s <= self._room.clock.monotonic_s():
            return 0.0
        return pause.until_s

    def pause(self, place: ConsumerPlace) -> None:
        """Look at a place that nobody tells of less often, the longer it gives nothing."""
        first_s, longest_s = self._room.pauses_s
        before = self._pauses.get(place)
        length_s = first_s if before is None else min(before.length_s * 2, longest_s)
        self._pauses[place] = _Pause(self._room.clock.monotonic_s() + length_s, length_s)

    def rest(self, place: ConsumerPlace, length_s: float) -> None:
        """Do not look at a place for so many seconds, unless there is news of it."""
        self._pauses[place] = _Pause(self._room.clock.monotonic_s() + length_s, length_s)

    def hurry(self, place: ConsumerPlace | None) -> None:
        """Look at a place without a pause; None: at all."""
        if place is None:
            self._pauses.clear()
        else:
            self._pauses.pop(place, None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WaitingRoom:
    """See the module docstring. Used on the event loop only.

    As many clients as may have receives keep their place (`receive.max_parked`), with a filter of
    at most 1 KiB each.

    Args:
        quiet: tells of places that may have messages now.
        config: pauses, and how many of a line may look at the same time.

    Attributes:
        pauses_s: shortest and longest pause before a place is looked at again.
        max_width: receives of one line that look at the same time.
        clock: time.
    """

    def __init__(
        self, quiet: QuietPlaces, config: ReceiveSection, *, clock: Clock, metrics: Metrics
    ) -> None:
        self.quiet = quiet
        self.clock = clock
        self.pauses_s = (config.moved_pause_ms / 1000, config.max_look_pause_ms / 1000)
        self.max_width = config.max_looks_per_line
        # (topic id, consumer group id) -> lines
        self._lines: dict[tuple[int, int], dict[LineKey, Line]] = {}
        self._line_count = 0
        # Lines that news of many places have still to reach, the longest wait in front.
        self._due: dict[Line, None] = {}
        self._walk: asyncio.Handle | None = None
        # Clients whose receive ended without a message, the oldest first.
        self._kept: OrderedDict[tuple[LineKey, str], _Kept] = OrderedDict()
        self._max_kept = config.max_parked
        quiet.on_news(self.news)
        metrics.gauge("strata_broker_waiting_receives", lambda: len(self))
        metrics.gauge("strata_broker_kept_turns", lambda: len(self._kept))

    def __len__(self) -> int:
        return sum(len(line) for lines in self._lines.values() for line in lines.values())

    def enter(
        self, key: LineKey, ticket: PopTicket, next_look_s: NextLook, *, client_id: str
    ) -> Seat:
        """Let a receive join a line.

        Args:
            key: of the line.
            ticket: when it is ended the receive waits no more.
            next_look_s: says when the receive may look.
            client_id: whose receive it is.
        """
        lines = self._lines.setdefault(key[:2], {})
        line = lines.get(key)
        if line is None:
            line = lines[key] = Line(self, key)
            self._line_count += 1
        now_s = self.clock.monotonic_s()
        self._forget_kept(now_s)
        kept = self._kept.pop((key, client_id), None) if self._kept else None
        seat = Seat(line, ticket, next_look_s, since_s=now_s if kept is None else kept.since_s)
        line.join(seat)
        return seat

    def keep(self, seat: Seat, client_id: str) -> None:
        """Let the next receive of a client wait on from where this one was: it got nothing."""
        now_s = self.clock.monotonic_s()
        self._forget_kept(now_s)
        if len(seat.line.key.filter_bytes) > _MAX_KEPT_FILTER_BYTES:
            return
        key = seat.line.key, client_id
        before = self._kept.pop(key, None)
        since_s = seat.since_s if before is None else min(before.since_s, seat.since_s)
        self._kept[key] = _Kept(since_s, now_s)
        if len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def _forget_kept(self, now_s: float) -> None:
        """Forget the clients that did not ask again in time; each is forgotten once."""
        while self._kept:
            oldest = next(iter(self._kept))
            if now_s - self._kept[oldest].left_s < _KEEP_S:
                return
            del self._kept[oldest]

    def news(self, place: ConsumerPlace | None) -> None:
        """Let those look who wait for a place; None: all, soon.

        Changes come one behind the other when a storage node restarts: a line that is due when the
        next change comes looks once for both.
        """
        if place is None:
            # Not once for each raft group that a node says it leads.
            if len(self._due) < self._line_count:
                self._due.update(
                    (line, None) for lines in self._lines.values() for line in lines.values()
                )
            self._walk_on()
            return
        key = place.topic_id, place.consumer_group_id
        for line in list(self._lines.get(key, {}).values()):
            line.hurry(place)
            line.go()

    def is_due(self, line: Line) -> bool:
        """Whether there are news of many places that have not reached a line."""
        return line in self._due

    def reach(self, line: Line) -> bool:
        """Take in that a line gets all news now; return whether there were any."""
        if line not in self._due:
            return False
        del self._due[line]
        return True

    def _walk_on(self) -> None:
        if self._due and self._walk is None:
            self._walk = asyncio.get_running_loop().call_soon(self._reach_some)

    def _reach_some(self) -> None:
        self._walk = None
        try:
            for line in list(islice(self._due, _LINES_PER_TURN)):
                line.go()
        finally:
            # Also after a failure: the other lines have nobody else who lets them look.
            self._walk_on()

    def drop(self, line: Line) -> None:
        """Forget a line that nobody is in."""
        self._due.pop(line, None)
        lines = self._lines[line.key[:2]]
        del lines[line.key]
        self._line_count -= 1
        if not lines:
            del self._lines[line.key[:2]]
