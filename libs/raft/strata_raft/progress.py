"""A follower as its leader sees it: its progress, and how much may be sent to it.

    PROBE --accepted--> REPLICATE --rejected, dropped--> PROBE
    PROBE, REPLICATE --entries are no longer in the log--> SNAPSHOT --delivered or not--> PROBE

Invariant: 0 <= match < next. In PROBE one request is under way at a time and `next` is a guess; in
REPLICATE requests are pipelined up to the window's limits; in SNAPSHOT nothing is sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from strata_raft.options import RaftOptions

_STALLED_TICKS = 2
"""Ticks without news after which a request under way may be lost: one whole tick at least."""


class ProgressState(StrEnum):
    """The way in which entries are sent to a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """Progress of a follower, for observers.

    Attributes:
        replica_id: the follower.
        match_index: it holds everything up to here durably.
        state: how it is being sent entries.
        recently_heard: it answered within the last one to two election timeouts.
        is_learner: it receives entries and does not vote.
        applied_index: it has applied up to here; -1: it has not said so since it was last probed.
    """

    replica_id: int
    match_index: int
    state: ProgressState
    recently_heard: bool
    is_learner: bool
    applied_index: int = -1


class Progress:
    """One follower or learner. `is_active` is cleared by the leader at each quorum check."""

    __slots__ = (
        "_options",
        "_stalled_ticks",
        "_window",
        "_window_bytes",
        "applied",
        "is_active",
        "match",
        "next",
        "probe_sent",
        "sent_commit",
        "snapshot_index",
        "state",
        "was_active",
    )

    def __init__(self, next_index: int, options: RaftOptions) -> None:
        self._options = options
        self._window: deque[tuple[int, int]] = deque()
        self._window_bytes = 0
        # Ticks since the oldest request under way was sent, or since the last news.
        self._stalled_ticks = 0
        self.match = 0
        # The index that it says it has applied; -1: not known.
        self.applied = -1
        self.next = next_index
        self.state = ProgressState.PROBE
        self.probe_sent = False
        self.is_active = True
        self.was_active = False
        self.snapshot_index = 0
        # The commit index in the last request, so that a commit alone is told once.
        self.sent_commit = 0

    def is_paused(self) -> bool:
        """Tell whether nothing may be sent until an answer comes."""
        match self.state:
            case ProgressState.PROBE:
                return self.probe_sent
            case ProgressState.REPLICATE:
                return self.is_window_full()
            case ProgressState.SNAPSHOT:
                return True

    def is_window_full(self) -> bool:
        """Tell whether the requests under way reach a limit."""
        return (
            len(self._window) >= self._options.max_inflight_requests
            or self._window_bytes >= self._options.max_inflight_bytes
        )

    def may_be_lost(self) -> bool:
        """Tell whether it is worth asking what a pipelined follower holds.

        While answers keep coming it is not: each question costs two messages, and there is one
        for every round of heartbeats.
        """
        return not self._window or self._stalled_ticks >= _STALLED_TICKS

    def asked(self) -> None:
        """Note a question about what the follower holds: give it time to answer."""
        self._stalled_ticks = 0

    def ticked(self) -> None:
        """Let one tick pass."""
        self._stalled_ticks += 1

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note a request whose entries end at `last_index` (`next - 1`: it had none)."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
        elif last_index >= self.next:
            if not self._window:
                self._stalled_ticks = 0
            self.next = last_index + 1
            self._window.append((last_index, size_bytes))
            self._window_bytes += size_bytes

    def accepted(self, index: int, first_index: int = 0) -> bool:
        """Note that the follower holds everything up to `index`; return whether that is news.

        Args:
            index: what it confirmed.
            first_index: the oldest entry that can be sent to it. A snapshot older than the one it
                was offered is good enough if the log goes on from there: under load each offer
                is newer than what the follower has just installed.
        """
        self.probe_sent = False
        is_news = index > self.match
        if is_news:
            self.match = index
            self._stalled_ticks = 0
            self.next = max(self.next, index + 1)
        while self._window and self._window[0][0] <= index:
            self._window_bytes -= self._window.popleft()[1]
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT
            and (self.match >= self.snapshot_index or self.match + 1 >= first_index > 0)
        ):
            self.become_replicate()
        return is_news

    def rejected(self, previous_index: int, retry_from: int) -> bool:
        """Note that the follower refused; return whether to ask it again at once.

        A follower that lacks what it confirmed has voided its log for a snapshot which it did not
        get: it has to be sent everything again. An old answer may look like that; then it costs
        one question, for nothing that is committed depends on `match` any more.

        Args:
            previous_index: the index whose predecessor check failed.
            retry_from: the highest index at which the logs may agree.
        """
        if self.state is ProgressState.SNAPSHOT:
            return False
        if previous_index <= self.match and retry_from < self.match:
            self.match = retry_from
            self.become_probe()
            return True
        if self.state is ProgressState.REPLICATE:
            if previous_index <= self.match:
                return False
            self.become_probe()
            return True
        if previous_index != self.next - 1:
            return False
        before = self.next
        self.next = max(min(previous_index, retry_from + 1), self.match + 1)
        self.probe_sent = False
        # The same question would get the same answer: the next heartbeat asks again.
        return self.next != before

    def heard(self) -> None:
        """Note a sign of life: a probe, or the oldest request of a full window, may be lost."""
        self.is_active = True
        self.probe_sent = False
        if self.state is ProgressState.REPLICATE and self.is_window_full() and self.may_be_lost():
            self._window_bytes -= self._window.popleft()[1]

    def quorum_checked(self) -> None:
        """Begin a new period of waiting for signs of life."""
        self.was_active, self.is_active = self.is_active, False

    def become_probe(self) -> None:
        """Ask where the follower is."""
        # It may have started anew, with other rows.
        self.applied = -1
        after_snapshot = self.snapshot_index + 1 if self.state is ProgressState.SNAPSHOT else 0
        self._reset(ProgressState.PROBE)
        self.next = max(self.match + 1, after_snapshot)

    def become_replicate(self) -> None:
        """Send without waiting for answers."""
        self._reset(ProgressState.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, snapshot_index: int) -> None:
        """Wait for a snapshot to arrive."""
        self._reset(ProgressState.SNAPSHOT)
        self.snapshot_index = snapshot_index

    def snapshot_failed(self) -> None:
        """Go back to asking; nothing is known to have arrived."""
        self.snapshot_index = 0
        self.become_probe()

    def _reset(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self._window.clear()
        self._window_bytes = 0
        self._stalled_ticks = 0
        if state is not ProgressState.PROBE:
            self.snapshot_index = 0
