"""Chooses the broker that checks a half message. One for all raft groups of a node.

Any producer of the topic may answer, wherever it is connected: brokers report the topics of which
they hold live producers (`ReportClients`), storage picks one of them in turn. A broker counts as
long as it watches this node and reports.

A producer of the remoting protocol has a group, and its broker may not know its topics, such as
after a start. That broker reports so, and gets checks of topics that no broker reports: it looks
for the group that a message names. Such a check is a guess, and counts only if the broker reports
that it gave it to a producer. It gets the second and later checks of other topics, too: who reports
the topic may hold producers of another group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from strata_runtime.stalls import OwnStalls
from strata_storage.base.watchers import TransactionCheck, Watchers


class _Report(NamedTuple):
    topic_ids: frozenset[int]
    seen_at_s: float
    guesses: bool


class CheckWay(Enum):
    """Whom a check can be sent to."""

    # A broker holds a producer of the topic.
    ASK = auto()
    # A broker may find one.
    GUESS = auto()
    NONE = auto()


class SentCheck(Enum):
    """Outcome of sending a check."""

    # No broker had room for it.
    NOT = auto()
    # A broker has it; it reports if it gives it to a producer.
    TO_BE_REPORTED = auto()
    # A broker of an earlier version has it: nothing more is heard of it.
    COUNTS = auto()


class CheckRoutes:
    """See the module docstring. Times are of the monotonic clock.

    Args:
        watchers: the streams that checks go out on.
        silence_s: a broker that reported nothing for this long is not asked.
        stalls: of this process; they are no silence of brokers.
        max_brokers: brokers remembered.
        max_topics: topics remembered per broker; a producer of a further one is not found.
    """

    def __init__(
        self,
        watchers: Watchers,
        silence_s: float,
        stalls: OwnStalls,
        *,
        max_brokers: int = 1_000,
        max_topics: int = 100_000,
    ) -> None:
        self._watchers = watchers
        self._silence_s = silence_s
        self._stalls = stalls
        self._max_brokers = max_brokers
        self._max_topics = max_topics
        self._reports: dict[int, _Report] = {}
        self._turn = 0

    def reported(
        self,
        boot_id: int,
        topic_ids: Iterable[int] | None,
        now_s: float,
        *,
        guesses: bool = False,
    ) -> None:
        """Take in a broker's report.

        Args:
            boot_id: whose.
            topic_ids: all topics of which it holds a live producer; None: as it said before.
            now_s: when.
            guesses: it holds producers whose topics it does not know; with `topic_ids`.
        """
        before = self._reports.pop(boot_id, None)
        if topic_ids is not None:
            topics = frozenset(islice(topic_ids, self._max_topics))
        else:
            topics = before.topic_ids if before is not None else frozenset()
            guesses = before is not None and before.guesses
        self._reports[boot_id] = _Report(topics, now_s - self._stalls.total_s, guesses)
        if len(self._reports) > self._max_brokers:
            del self._reports[next(iter(self._reports))]

    def forget(self, boot_id: int) -> None:
        """A broker says goodbye."""
        self._reports.pop(boot_id, None)

    def way(self, topic_id: int | None, now_s: float) -> CheckWay:
        """Return whom a check can be sent to; `topic_id` as in `candidates`."""
        if any(self._can(boot_id, topic_id, now_s) for boot_id in self._watchers.boot_ids()):
            return CheckWay.ASK
        # It is a guess whatever topic a broker may hold a producer of.
        return CheckWay.GUESS if self.guessing(now_s) else CheckWay.NONE

    def candidates(self, topic_id: int | None, now_s: float) -> Sequence[int]:
        """Return the brokers to ask, the one whose turn it is first.

        Args:
            topic_id: only those that hold a producer of it; None: any broker will do.
            now_s: the time.
        """
        found = [
            boot_id for boot_id in self._watchers.boot_ids() if self._can(boot_id, topic_id, now_s)
        ]
        if len(found) < 2:
            return found
        self._turn += 1
        at = self._turn % len(found)
        return found[at:] + found[:at]

    def guessing(self, now_s: float) -> Sequence[int]:
        """Return the brokers that hold producers whose topics they do not know."""
        return [
            boot_id
            for boot_id in self._watchers.boot_ids()
            if self._can(boot_id, None, now_s)
            and (report := self._reports.get(boot_id)) is not None
            and report.guesses
        ]

    def guess(self, check: TransactionCheck, now_s: float) -> bool:
        """Give a check to all brokers that may find its producer; whether one had room for it.

        Those that report its topic are asked in turn (`send`), and get it once.
        """
        offered = [
            self._watchers.offer(boot_id, check)
            for boot_id in self.guessing(now_s)
            if not self._can(boot_id, check.topic_id, now_s)
        ]
        return any(offered)

    def send(self, check: TransactionCheck, topic_id: int | None, now_s: float) -> SentCheck:
        """Give a check to a broker as `candidates` says, the first one that has room for it."""
        for boot_id in self.candidates(topic_id, now_s):
            if self._watchers.offer(boot_id, check):
                reports = self._watchers.reports_checks(boot_id)
                return SentCheck.TO_BE_REPORTED if reports else SentCheck.COUNTS
        return SentCheck.NOT

    def _can(self, boot_id: int, topic_id: int | None, now_s: float) -> bool:
        report = self._reports.get(boot_id)
        if report is None:
            # It watches and has not reported yet; any broker can give a message up.
            return topic_id is None
        if now_s - self._stalls.total_s - report.seen_at_s >= self._silence_s:
            return False
        return topic_id is None or topic_id in report.topic_ids
