"""Election safety: at most one leader per term of a raft group (thesis figure 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata_raft import Role
from strata_sim.hosts import AnyHost


class OneLeaderPerTerm:
    """Remembers who led each term of each raft group."""

    EVERY_MESSAGE = True

    def __init__(self) -> None:
        self._leaders: dict[tuple[int, int], int] = {}

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            for raft_group, replica in host.replicas().items():
                if replica.role is not Role.LEADER:
                    continue
                known = self._leaders.setdefault((raft_group, replica.term), replica.replica_id)
                if known != replica.replica_id:
                    yield (
                        f"raft group {raft_group} has two leaders in term {replica.term}: "
                        f"{known} and {replica.replica_id}"
                    )
