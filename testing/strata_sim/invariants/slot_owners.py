"""No slot is owned by two raft groups, whatever moves (rule 17).

The newest leader of a raft group knows its slots once it is ready, that is, has applied everything
that was committed. A replaced leader may still believe that it owns moved slots, so a leader counts
only if no replica has heard of a later term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from strata_sim.hosts import AnyHost, StorageHost


class OneOwnerPerSlot:
    """Remembers the newest term of every raft group."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._terms: defaultdict[int, int] = defaultdict(int)

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        storage = [host for host in hosts if isinstance(host, StorageHost)]
        for host in storage:
            for raft_group, replica in host.replicas().items():
                self._terms[raft_group] = max(self._terms[raft_group], replica.term)
        owners: dict[int, int] = {}
        for host in storage:
            for raft_group, replica in host.replicas().items():
                if replica.term < self._terms[raft_group] or not replica.is_ready_leader():
                    continue
                for slot in _owned_by(host, raft_group):
                    owner = owners.setdefault(slot, raft_group)
                    if owner != raft_group:
                        yield f"slot {slot} is owned by raft groups {owner} and {raft_group}"


def _owned_by(host: StorageHost, raft_group: int) -> Iterator[int]:
    assert host.app is not None
    runs = host.app.app.node.engine(raft_group).machine.ownership.slots.runs()
    for first, count in runs:
        yield from range(first, first + count)
