"""Replicas that a storage node could not host: which ones, why, and when each is tried again.

A replica is *refused* if no later try can help: it ended here, or what it has is damaged. Only
another replica id takes its place (rule 8). All other failures are of the moment (rule 40): a
replica that *waits* is tried again after a pause that grows with each failure, and nobody is told
that it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from strata_storage.base.hosted import HostedGroup

_PAUSE_MIN_S = 1.0
_PAUSE_MAX_S = 30.0


class MissingReplica(NamedTuple):
    """A replica that the metadata wants on this node and that is not hosted.

    Attributes:
        replica_id: its id.
        reason: of the last failure; empty: it was not tried yet.
        is_refused: it is tried no more.
    """

    replica_id: int
    reason: str = ""
    is_refused: bool = False

    def text(self) -> str:
        """Return one line for people."""
        if self.is_refused:
            return f"replica {self.replica_id} cannot be hosted: {self.reason}"
        again = f"; it is tried again: {self.reason}" if self.reason else ""
        return f"replica {self.replica_id} is not hosted yet{again}"


@dataclass(slots=True)
class _Failed:
    """A failure to host; times are in seconds, `due_s` is monotonic, None: never again."""

    replica_id: int
    reason: str
    pause_s: float = 0.0
    due_s: float | None = None


class Unhosted:
    """See the module docstring. At most one replica of each raft group is here."""

    def __init__(self) -> None:
        self._failed: dict[int, _Failed] = {}

    def refuse(self, group: HostedGroup, reason: str) -> None:
        """Note that a replica cannot be hosted, whatever is tried."""
        self._failed[group.raft_group] = _Failed(group.replica_id, reason)

    def put_off(self, group: HostedGroup, reason: str, now_s: float) -> bool:
        """Note that a replica could not be hosted now; return whether the reason is news.

        Args:
            group: which one.
            reason: of the failure.
            now_s: monotonic time.
        """
        before = self._failed.get(group.raft_group)
        if before is None or before.replica_id != group.replica_id:
            before = _Failed(group.replica_id, "")
        pause_s = min(max(2 * before.pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S)
        failed = _Failed(group.replica_id, reason, pause_s, now_s + pause_s)
        self._failed[group.raft_group] = failed
        return reason != before.reason

    def drop(self, raft_group: int, replica_id: int | None = None) -> None:
        """Forget a failure; with `replica_id` only that replica's."""
        failed = self._failed.get(raft_group)
        if failed is not None and replica_id in (None, failed.replica_id):
            del self._failed[raft_group]

    def keep(self, wanted: Mapping[int, HostedGroup]) -> None:
        """Forget the replicas that wait and are wanted no more."""
        for raft_group, failed in list(self._failed.items()):
            group = wanted.get(raft_group)
            is_wanted = group is not None and group.replica_id == failed.replica_id
            if failed.due_s is not None and not is_wanted:
                del self._failed[raft_group]

    def refused(self) -> dict[int, str]:
        """Return by replica id why it cannot be hosted."""
        failures = self._failed.values()
        return {each.replica_id: each.reason for each in failures if each.due_s is None}

    def to_try(self, groups: Iterable[HostedGroup], now_s: float) -> list[HostedGroup]:
        """Return the replicas to be tried now; those that failed before come last."""
        due = [group for group in groups if self._is_due(group, now_s)]
        return sorted(due, key=lambda group: group.raft_group in self._failed)

    def due_in_s(self, now_s: float) -> float | None:
        """Return the seconds until a replica is to be tried again; None: none waits."""
        dues = [each.due_s for each in self._failed.values() if each.due_s is not None]
        return max(0.0, min(dues) - now_s) if dues else None

    def missing(self, group: HostedGroup) -> MissingReplica:
        """Return what is known of a replica that is not hosted."""
        failed = self._failed.get(group.raft_group)
        if failed is None or failed.replica_id != group.replica_id:
            return MissingReplica(group.replica_id)
        return MissingReplica(group.replica_id, failed.reason, failed.due_s is None)

    def _is_due(self, group: HostedGroup, now_s: float) -> bool:
        failed = self._failed.get(group.raft_group)
        if failed is None or failed.replica_id != group.replica_id:
            return True
        return failed.due_s is not None and failed.due_s <= now_s
