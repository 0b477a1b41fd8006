"""No replica is damaged where only crashes and power losses were (rule 7).

A crash takes what was not synced; what a replica answered for was. One whose log or rows do not
hold together after a crash had answered for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata_sim.hosts import AnyHost, StorageHost


class DamageHasCause:
    """Examines the replicas of nodes whose disk keeps what is synced."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._told: set[int] = set()

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            if not isinstance(host, StorageHost) or host.may_be_damaged:
                continue
            for raft_group, replica in host.replicas().items():
                if replica.read_only and replica.replica_id not in self._told:
                    self._told.add(replica.replica_id)
                    yield f"raft group {raft_group}: {host.name}: {replica.read_only}"
