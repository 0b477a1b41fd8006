"""Actions of store liveness on raft groups: quiesce, wake, forget a leader, campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_multiraft.base.errors import NotLeader, TransferFailed
from strata_multiraft.driver.node import MultiRaft
from strata_multiraft.replica.replica import Replica
from strata_raft import Campaign, EventRefused, ForgetLeader
from strata_runtime.tasks import Tasks


class DrivenRaftGroups:
    """See `store_liveness.RaftGroups`.

    Args:
        multiraft: the driver.
        tasks: runs hand-overs.
    """

    def __init__(self, multiraft: MultiRaft, tasks: Tasks) -> None:
        self._multiraft = multiraft
        self._tasks = tasks
        self._handing_over: set[int] = set()

    def replicas(self) -> Mapping[int, Replica]:
        """See `RaftGroups.replicas`."""
        return self._multiraft.replicas()

    def quiesce(self, raft_group: int) -> None:
        """See `RaftGroups.quiesce`."""
        self._multiraft.ticker.quiesce(self.replicas()[raft_group])

    def wake(self, raft_group: int) -> None:
        """See `RaftGroups.wake`."""
        self._multiraft.ticker.wake(self.replicas()[raft_group])

    def leaders_lost(self, raft_groups: Sequence[int]) -> None:
        """See `RaftGroups.leaders_lost`."""
        for raft_group in raft_groups:
            replica = self.replicas()[raft_group]
            self._multiraft.perform(replica, replica.node.step(ForgetLeader()))
        self._multiraft.end_turn()

    def campaign(self, raft_groups: Sequence[int]) -> None:
        """See `RaftGroups.campaign`."""
        for raft_group in raft_groups:
            replica = self.replicas()[raft_group]
            try:
                self._multiraft.perform(replica, replica.node.step(Campaign()))
            except EventRefused:
                continue  # no voter any more
        self._multiraft.end_turn()

    def hand_over(self, raft_groups: Sequence[int]) -> None:
        """See `RaftGroups.hand_over`; one that is under way is not begun again."""
        for raft_group in raft_groups:
            if raft_group not in self._handing_over and len(self._tasks) < 32:
                self._handing_over.add(raft_group)
                replica = self.replicas()[raft_group]
                self._tasks.spawn(f"hand_over.{raft_group}", self._hand_over(replica))

    def disk_mark(self) -> int:
        """See `RaftGroups.disk_mark`."""
        return self._multiraft.marks.own

    def set_peer_disk_marks(self, marks: Mapping[str, int]) -> None:
        """See `RaftGroups.set_peer_disk_marks`."""
        self._multiraft.set_peer_disk_marks(marks)

    async def _hand_over(self, replica: Replica) -> None:
        try:
            await replica.transfer_leadership()
        except (NotLeader, TransferFailed):
            pass  # it is tried again while there is a reason
        finally:
            self._handing_over.discard(replica.raft_group)
