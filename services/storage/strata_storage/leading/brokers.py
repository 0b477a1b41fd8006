"""Connected and recently lost brokers. One object for all raft groups of a node.

An auto-renewed lease lives as long as its client (rule 25). A broker that dies between a pop and
its answer leaves leases behind that their holder does not know of: they must be released although
the client lives. Messages that the broker took long before were delivered; releasing them as well
would deliver them twice. Invariant: a broker that came back is not lost.

A broker that was not heard of since this node started may have died with the node, or before it:
what a new leader does about its leases is in `takeovers`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from strata_mq.leases import broker_mark
from strata_runtime.stalls import OwnStalls


class _Left(NamedTuple):
    """A broker without a stream; `stalled_s` is the length of our own stalls until then."""

    at_s: float
    delivered_until_s: float
    stalled_s: float


class LostBroker(NamedTuple):
    """A broker that is gone.

    Attributes:
        mark: what leases keep of it.
        delivered_until_s: what it took before this time was delivered.
    """

    mark: int
    delivered_until_s: float


class Brokers:
    """See the module docstring. Times are of the monotonic clock.

    Args:
        stalls: of this process, in which no broker can open a stream.
        absence_s: a broker without a watch stream for this long is lost.
        answer_s: it is noticed, at the latest, this long after it died; answers are quicker.
        goodbye_s: the same for a broker that says when it stops.
        remembered_s: for this long after it left.
        max_remembered: brokers that left lately.

    Attributes:
        remembered_s: as given.
    """

    def __init__(
        self,
        stalls: OwnStalls,
        *,
        absence_s: float = 3.0,
        answer_s: float = 12.0,
        goodbye_s: float = 0.5,
        remembered_s: float = 60.0,
        max_remembered: int = 1_000,
    ) -> None:
        self._stalls = stalls
        self._absence_s = absence_s
        self._answer_s = answer_s
        self._goodbye_s = goodbye_s
        self.remembered_s = remembered_s
        self._max_remembered = max_remembered
        # Boot id -> its streams; one that is opened anew may overlap the old one.
        self._streams: dict[int, int] = {}
        # By boot id.
        self._left: OrderedDict[int, _Left] = OrderedDict()
        # Marks of all brokers that this node ever heard of; there are 65,536 at most.
        self._heard: set[int] = set()

    @property
    def settled_s(self) -> float:
        """Return the time after a take by which its answer arrived, or the broker's loss is known.

        A leader that lives for so long has released the lease if nobody was given the message.
        """
        return self._answer_s + 2 * self._absence_s

    def heard(self, boot_id: int) -> None:
        """Take in that a broker lives: it sees itself to answers that are lost."""
        self._heard.add(broker_mark(boot_id))

    def unheard(self, marks: Iterable[int]) -> list[int]:
        """Return the marks of brokers, of those given, that this node has not heard of."""
        return [mark for mark in marks if mark and mark not in self._heard]

    def watches(self, boot_id: int) -> None:
        """A broker opened a stream."""
        self.heard(boot_id)
        self._streams[boot_id] = self._streams.get(boot_id, 0) + 1
        self._left.pop(boot_id, None)

    def unwatched(self, boot_id: int, now_s: float) -> None:
        """A stream of a broker ended."""
        left = self._streams.get(boot_id, 0) - 1
        if left > 0:
            self._streams[boot_id] = left
        elif self._streams.pop(boot_id, None) is not None:
            self._gone(boot_id, now_s, now_s - self._answer_s)

    def leaves(self, boot_id: int, now_s: float) -> None:
        """A broker says goodbye: only what it took in this moment may be undelivered."""
        self._streams.pop(boot_id, None)
        self._gone(boot_id, now_s, now_s - self._goodbye_s)

    def lost(self, now_s: float) -> list[LostBroker]:
        """Return the brokers that were lost lately; forget those of long ago."""
        while self._left:
            boot_id, left = next(iter(self._left.items()))
            if self._absent_s(left, now_s) < self.remembered_s:
                break
            del self._left[boot_id]
        return [
            LostBroker(broker_mark(boot_id), left.delivered_until_s)
            for boot_id, left in self._left.items()
            if boot_id and self.is_lost(boot_id, now_s)
        ]

    def is_lost(self, boot_id: int, now_s: float) -> bool:
        """Whether nobody is there any more to whom an answer could go."""
        left = self._left.get(boot_id)
        return left is not None and self._absent_s(left, now_s) >= self._absence_s

    def _absent_s(self, left: _Left, now_s: float) -> float:
        """Return for how long a broker could have come back."""
        return now_s - left.at_s - (self._stalls.total_s - left.stalled_s)

    def _gone(self, boot_id: int, now_s: float, delivered_until_s: float) -> None:
        self._left[boot_id] = _Left(now_s, delivered_until_s, self._stalls.total_s)
        self._left.move_to_end(boot_id)
        if len(self._left) > self._max_remembered:
            self._left.popitem(last=False)
