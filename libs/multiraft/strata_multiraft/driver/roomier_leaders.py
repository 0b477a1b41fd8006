"""Leaders on this node that another replica, on a disk with more room, should follow (rule 11)."""

from __future__ import annotations

from collections.abc import Iterable

from strata_multiraft.replica.disk_marks import DiskMarks
from strata_multiraft.replica.replica import Replica
from strata_raft import Role


def better_led_elsewhere(
    replicas: Iterable[Replica], marks: DiskMarks
) -> list[tuple[Replica, int]]:
    """Return leaders here with a replica that has more room: (leader, that replica's id)."""
    if not marks.own:
        return []
    leaders = [each for each in replicas if each.role is Role.LEADER and not each.is_handing_over]
    successors = [(leader, leader.successor()) for leader in leaders]
    return [
        (leader, successor)
        for leader, successor in successors
        if successor and marks.of_replica(successor) < marks.own
    ]
