"""Replicas of a raft group have the same rows at the same applied index, byte for byte."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from strata_sim.hosts import AnyHost, StorageHost

_KEPT = 2_000


class EqualRows:
    """Remembers a checksum of the rows at each applied index that was looked at."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._checksums: dict[tuple[int, int], tuple[int, str]] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def look(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.look`."""
        for host in hosts:
            if not isinstance(host, StorageHost) or host.app is None:
                continue
            for raft_group, replica in host.replicas().items():
                if replica.installing or replica.is_resetting or replica.read_only:
                    continue
                yield from self._look_at(host, raft_group, replica.machine.applied_index())

    def _look_at(self, host: StorageHost, raft_group: int, applied: int) -> Iterator[str]:
        assert host.app is not None
        key = (host.name, raft_group)
        if not applied or self._seen.get(key) == applied:
            return
        self._seen[key] = applied
        checksum = 0
        for row_key, value in host.app.app.node.engine(raft_group).machine.rows.all():
            checksum = zlib.crc32(value, zlib.crc32(row_key, checksum))
        known = self._checksums.setdefault((raft_group, applied), (checksum, host.name))
        if known[0] != checksum:
            yield (
                f"raft group {raft_group}: {known[1]} and {host.name} have different rows at "
                f"applied index {applied}"
            )
        if len(self._checksums) > _KEPT:
            self._checksums.pop(next(iter(self._checksums)))
