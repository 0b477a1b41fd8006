"""All copies of the metadata have the same rows at the same revision."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

from strata.meta.v1 import command_pb2
from strata_sim.hosts import AnyHost, NameserverHost, StorageHost
from strata_sim.stores import SimMetadataStore
from strata_state.metadata_keys import APPLIED_KEY, INSTALLING_KEY, MetadataRowKind

# Rows that only a nameserver or only a storage node keeps, or each keeper for itself.
_OWN_KINDS = {
    MetadataRowKind.ANSWER,
    MetadataRowKind.APPLIED,
    MetadataRowKind.CHANGE,
    MetadataRowKind.INSTALLING,
    MetadataRowKind.TOPIC_ID,
}


class EqualMetadata:
    """Remembers checksums of the rows at each revision that was looked at."""

    EVERY_MESSAGE = False

    def __init__(self) -> None:
        self._checksums: dict[tuple[str, int], tuple[int, str]] = {}
        self._seen: dict[str, int] = {}

    def check(self, hosts: Sequence[AnyHost]) -> Iterator[str]:
        """See `Invariant.check`."""
        for host in hosts:
            revision, rows = _metadata(host)
            if rows is None or not revision or self._seen.get(host.name) == revision:
                continue
            self._seen[host.name] = revision
            yield from self._compare(revision, host.name, rows, lambda kind: kind not in _OWN_KINDS)
            if isinstance(host, NameserverHost):
                # Their copies elsewhere have no answers.
                is_answer = MetadataRowKind.ANSWER.__eq__
                yield from self._compare(revision, host.name, rows, is_answer, what="answers")

    def _compare(
        self,
        revision: int,
        host: str,
        rows: SimMetadataStore,
        compares: Callable[[int], bool],
        *,
        what: str = "metadata",
    ) -> Iterator[str]:
        checksum = 0
        for key, value in rows.scan(b"", b"\xff"):
            if compares(key[0]):
                checksum = zlib.crc32(value, zlib.crc32(key, checksum))
        known = self._checksums.setdefault((what, revision), (checksum, host))
        if known[0] != checksum:
            yield f"{known[1]} and {host} have different {what} at revision {revision}"


def _metadata(host: AnyHost) -> tuple[int, SimMetadataStore | None]:
    rows: SimMetadataStore | None = None
    if isinstance(host, NameserverHost):
        rows = host.rows
    elif isinstance(host, StorageHost):
        rows = host.metadata_rows
    if rows is None or rows.get(INSTALLING_KEY) is not None:
        return 0, None
    applied = command_pb2.AppliedState.FromString(rows.get(APPLIED_KEY) or b"")
    return applied.counters.revision, rows
