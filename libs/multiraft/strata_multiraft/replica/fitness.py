"""Fitness of replicas to lead one raft group, as the local replica sees it.

A leader is silent until it has applied everything (rule 1), so a replica that has rows to rebuild
gets no leadership while other replicas lag less. Clocks (rule 4) and disks (rule 11) count too.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_multiraft.replica.commit_history import CommitHistory
from strata_multiraft.replica.driver_port import DriverFacts
from strata_multiraft.replica.membership_calls import best_successor
from strata_raft import RawNode
from strata_raft.progress import ProgressState


class Fitness:
    """See the module docstring.

    Args:
        node: gives the replica's raft core; it is replaced when the replica is reset.
        driver: knows clocks and disks of the nodes.
        commit_index: known when the replica was opened.
    """

    __slots__ = ("_commit_at_last_tick", "_commit_at_tick", "_driver", "_node", "commits")

    def __init__(self, node: Callable[[], RawNode], driver: DriverFacts, commit_index: int) -> None:
        self._node = node
        self._driver = driver
        self.commits = CommitHistory(driver.clock, driver.options.fit_lag_ms, commit_index)
        # Commit indexes at the last two ticks; -1: there were none since it was last at rest.
        self._commit_at_tick = -1
        self._commit_at_last_tick = -1

    def caught_up(self, replica_id: int) -> bool:
        """Tell whether a follower could take the leadership over now. Leader only.

        It holds all that was committed a tick ago, and has applied what was a while ago.
        """
        return self.holds_log(replica_id) and self.has_applied(replica_id)

    def holds_log(self, replica_id: int) -> bool:
        """Tell whether a follower holds all that was committed a tick ago. Leader only."""
        committed = self._commit_at_last_tick
        if committed < 0:
            committed = self._node().commit_index
        return any(
            each.match_index >= committed and each.state is ProgressState.REPLICATE
            for each in self._node().progress()
            if each.replica_id == replica_id
        )

    def has_applied(self, replica_id: int) -> bool:
        """Tell whether a follower has applied nearly everything, as far as known. Leader only."""
        return self._applied_of(replica_id) >= self._due_index()

    def is_known_behind(self, replica_id: int) -> bool:
        """Tell whether a follower has said that it has yet to apply old entries. Leader only."""
        return 0 <= self._applied_of(replica_id) < self.commits.a_while_ago()

    def successor(self) -> int:
        """Return the replica that should lead next; 0: no replica can."""
        return best_successor(
            self._node().progress(),
            self._node().configuration,
            self._driver.marks.of_replica,
            self._may_follow,
            self.has_applied,
        )

    def may_take_over(self, replica_id: int) -> bool:
        """Tell whether a replica may lead, on a disk no fuller than this one's (rules 4, 11)."""
        driver = self._driver
        has_room = driver.marks.of_replica(replica_id) <= driver.marks.own
        return driver.may_lead(replica_id) and has_room

    def ticked(self, *, may_lead: bool) -> None:
        """A tick has passed.

        Args:
            may_lead: this node may be given leaderships.
        """
        self._commit_at_last_tick = self._commit_at_tick
        self._commit_at_tick = self._node().commit_index
        self._node().note_due(self.commits.a_while_ago() if may_lead else 0)

    def quiesced(self) -> None:
        """No ticks come from now on."""
        self._commit_at_tick = self._commit_at_last_tick = -1

    def _may_follow(self, replica_id: int) -> bool:
        """Tell whether a replica may be the next leader, for all that is known of its node.

        The raft core of a leader at rest hears nobody: only the node's heartbeats tell that a
        follower has died since.
        """
        return self._driver.may_lead(replica_id) and not self._driver.is_silent(replica_id)

    def _due_index(self) -> int:
        return max(self.commits.a_while_ago(), self._node().term_start_index)

    def _applied_of(self, replica_id: int) -> int:
        for each in self._node().progress():
            if each.replica_id == replica_id:
                return each.applied_index
        return -1
