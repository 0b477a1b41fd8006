"""The end of a queue never falls: at a higher applied index the next offset is not lower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata_sim.hosts import AnyHost, StorageHost
from strata_state.rows import QueueRows


class EndsNeverFall:
    """Remembers per queue the highest applied index that was looked at, and the end there."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int, int], tuple[int, int]] = {}

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            if not isinstance(host, StorageHost):
                continue
            for raft_group, replica in host.replicas().items():
                if replica.installing or replica.is_resetting or replica.read_only:
                    continue
                applied = replica.machine.applied_index()
                for topic_id, queue, row in QueueRows(host.rows, raft_group).all():
                    key = (raft_group, topic_id, queue)
                    at, end = self._ends.get(key, (0, 0))
                    if applied >= at and row.next_offset < end:
                        yield (
                            f"{host.name}: queue {key} ends at {row.next_offset} at applied "
                            f"index {applied}, ended at {end} at {at}"
                        )
                    if applied > at:
                        self._ends[key] = (applied, row.next_offset)
