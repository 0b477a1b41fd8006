"""Room for answers: how many bytes of messages receives and pulls read at the same time.

A read takes room before it asks storage: about as much as answers of its topic had lately, and the
most that an answer may have while nothing is known of the topic. A read that finds no room asks for
the places of the messages only; their sizes are known then, and the bytes are read when there is
room for them. So reads that are answered at the same moment do not fill the memory, however many
they are. An answer gives its room back when it is complete: the edge, or the port for remoting
clients, counts it from then on. Reads that wait for messages at storage hold at most half of the
room, so those that find messages always get some.

Invariant: reads that wait for room are served in their order, and the first of them is served as
soon as nobody holds anything, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress

from strata_broker.base.errors import too_many_requests
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout

_LEAST_BYTES = 64 * 1024
"""Room of one read of a topic with small messages."""
_MAX_TOPICS = 10_000
"""Topics whose answers are remembered."""


class AnswerRoom:
    """See the module docstring. Used on the event loop only.

    Args:
        of: name of the calls, in the plural.
        most_bytes: of all answers that are being made.
        most_bytes_each: of one answer; one message is always allowed.
        wait_s: longest wait for room.
        metrics: where its use shows.
    """

    def __init__(
        self, of: str, most_bytes: int, most_bytes_each: int, *, wait_s: float, metrics: Metrics
    ) -> None:
        self._of = of
        self._most_bytes = most_bytes
        self._most_bytes_each = most_bytes_each
        self._wait_s = wait_s
        self.held_bytes = 0
        # The part of it that reads hold which wait for messages.
        self.parked_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        # topic id -> room that its next answer should find
        self._expected: OrderedDict[int, int] = OrderedDict()
        label = {"of": of}
        metrics.gauge("strata_broker_answer_bytes", lambda: [(self.held_bytes, label)])
        metrics.gauge("strata_broker_answers_waiting", lambda: [(len(self._waiting), label)])
        self._by_place = metrics.counter("strata_broker_answers_by_place_total")

    def share(self, topic_id: int) -> AnswerShare:
        """Return the room of one call; it holds nothing yet."""
        return AnswerShare(self, topic_id)

    def expected_bytes(self, topic_id: int) -> int:
        """Return the room for the next answer of a topic."""
        return self._expected.get(topic_id, self._most_bytes_each)

    def learn(self, topic_id: int, size_bytes: int) -> None:
        """Take in the size of an answer: the next one may be twice as large."""
        before = self.expected_bytes(topic_id)
        expected = max(_LEAST_BYTES, 2 * size_bytes, before // 2)
        self._expected[topic_id] = min(expected, self._most_bytes_each)
        self._expected.move_to_end(topic_id)
        if len(self._expected) > _MAX_TOPICS:
            self._expected.popitem(last=False)

    def try_take(self, size_bytes: int) -> bool:
        """Take room unless there is too little, or others wait for it."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self.held_bytes += size_bytes
        return True

    def try_park(self, size_bytes: int) -> bool:
        """Take room for a read that waits for messages."""
        if self.parked_bytes + size_bytes > self._most_bytes // 2 or not self.try_take(size_bytes):
            return False
        self.parked_bytes += size_bytes
        return True

    def unpark(self, size_bytes: int) -> None:
        """A read waits no longer; it still holds its room."""
        self.parked_bytes -= size_bytes

    async def take(self, size_bytes: int) -> None:
        """Take room, and wait for it.

        Raises:
            RequestError: TOO_MANY_REQUESTS: it took too long.
        """
        if self.try_take(size_bytes):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            async with Timeout(self._wait_s):
                await turn
        except BaseException as failure:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                # A call that gave room back since may have passed this one over already.
                with suppress(ValueError):
                    self._waiting.remove((size_bytes, turn))
                self._serve_waiting()
            if isinstance(failure, TimeoutError):
                raise too_many_requests(
                    f"too many bytes of {self._of} are being answered ({self._of}: "
                    "max_bytes_in_flight)"
                ) from None
            raise

    def take_beyond(self, size_bytes: int) -> None:
        """Count bytes that are there already, even beyond the limit."""
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Give room back; whoever waits for it gets it."""
        self.held_bytes -= size_bytes
        self._serve_waiting()

    def asked_for_places(self) -> None:
        """Count a read that found no room."""
        self._by_place.add(1, {"of": self._of})

    def _serve_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self.held_bytes += size_bytes
                turn.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + size_bytes <= self._most_bytes


class AnswerShare:
    """Room of one call, see `AnswerRoom.share`."""

    __slots__ = ("_held_bytes", "_parked_bytes", "_room", "_topic_id")

    def __init__(self, room: AnswerRoom, topic_id: int) -> None:
        self._room = room
        self._topic_id = topic_id
        self._held_bytes = 0
        self._parked_bytes = 0

    def ask(self, *, waits: bool = False) -> int:
        """Take room for a read; return its most bytes, 0: it may ask for places only.

        Args:
            waits: the read waits for messages at storage.
        """
        self.leave()
        wanted_bytes = self._room.expected_bytes(self._topic_id)
        if waits and self._room.try_park(wanted_bytes):
            self._parked_bytes = wanted_bytes
        elif waits or not self._room.try_take(wanted_bytes):
            self._room.asked_for_places()
            return 0
        self._held_bytes = wanted_bytes
        return wanted_bytes

    def came(self, size_bytes: int) -> None:
        """Hold what a read has brought instead of what was asked for."""
        if size_bytes:
            self._room.learn(self._topic_id, size_bytes)
        # Others that wait may get room that is given back first: take no less than is here.
        self._room.take_beyond(size_bytes)
        self.leave()
        self._held_bytes = size_bytes

    async def wait_for(self, size_bytes: int) -> None:
        """Wait for room for messages whose places are known.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        self.leave()
        self._room.learn(self._topic_id, size_bytes)
        await self._room.take(size_bytes)
        self._held_bytes = size_bytes

    def leave(self) -> None:
        """Give back what it holds; a second time does nothing."""
        held_bytes, self._held_bytes = self._held_bytes, 0
        parked_bytes, self._parked_bytes = self._parked_bytes, 0
        if parked_bytes:
            self._room.unpark(parked_bytes)
        if held_bytes:
            self._room.give_back(held_bytes)
