"""Reads a CommitLog with no server and changes nothing: `strata log verify|dump`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from strata_seglog.errors import Corruption
from strata_seglog.footer import Contents
from strata_seglog.frames import FrameKind, Header
from strata_seglog.index import ReplicaLog
from strata_seglog.ports import Disk
from strata_seglog.recovery import Recovered, blame, recover
from strata_seglog.scrub import corruption_among
from strata_seglog.sealed import read_sealed
from strata_seglog.segments import OpenFiles, Segment
from strata_seglog.walk import Gap, walk

_OPEN_FILES = 4


@dataclass(slots=True)
class VerifyReport:
    """Findings of a whole reading.

    Attributes:
        segments: files with frames.
        frames: good ones, by kind.
        used_bytes: of all frames.
        end_position: where the log ends.
        torn_tail: after the end stand bytes of writes that were never synced. Normal after a
            power loss; after a clean stop it may be damage to the last frames.
        corruptions: damage before the end.
        replicas: what the log holds, by replica id.
    """

    segments: int = 0
    frames: dict[str, int] = field(default_factory=dict)
    used_bytes: int = 0
    end_position: int = 0
    torn_tail: bool = False
    corruptions: list[Corruption] = field(default_factory=list)
    replicas: dict[int, ReplicaLog] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing before the end is damaged."""
        return not self.corruptions


def verify_log(disk: Disk, tell: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check every frame, footer and trailer.

    Args:
        disk: holds the log.
        tell: is told at each segment how many bytes are checked, and how many there are.

    Raises:
        OSError: the disk cannot be read.
    """
    files = OpenFiles(disk, _OPEN_FILES)
    try:
        found = recover(disk, files)
        segments = _used_segments(found)
        by_base = {segment.base: segment for segment in segments}

        def contents(base: int) -> Contents:
            with files.use(by_base[base].name) as file:
                return read_sealed(file, by_base[base]).contents

        report = VerifyReport(len(segments), torn_tail=found.torn)
        report.corruptions.extend(found.corruptions)
        known = {each.position for each in found.corruptions}
        report.used_bytes = sum(segment.used for segment in segments)
        checked = 0
        before: Segment | None = None
        for segment, item in _walk_all(segments, files):
            if tell is not None and segment is not before:
                checked += before.used if before is not None else 0
                tell(checked, report.used_bytes)
            before = segment
            if not isinstance(item, Gap):
                kind = FrameKind(item[0].kind).name.lower()
                report.frames[kind] = report.frames.get(kind, 0) + 1
            elif item.position not in known:
                damage = corruption_among(segment, item, found.index, contents)
                report.corruptions.append(blame(found.index, damage))
        report.end_position = segments[-1].end if segments else 0
        report.replicas = {key: state.summary() for key, state in found.index.replicas.items()}
        return report
    finally:
        files.close()


def dump_log(disk: Disk) -> Iterator[dict[str, int | str | bool]]:
    """Yield every frame up to the end of the log, as what JSON can hold; no payloads.

    Damage is an item with `damaged` (the reason) and `next_position` (0: nothing good follows in
    this segment).

    Raises:
        OSError: the disk cannot be read.
    """
    files = OpenFiles(disk, _OPEN_FILES)
    try:
        for segment, item in _walk_all(_used_segments(recover(disk, files)), files):
            if isinstance(item, Gap):
                yield {
                    "segment": segment.name,
                    "position": item.position,
                    "damaged": item.reason,
                    "next_position": item.next_position or 0,
                }
                continue
            header = item[0]
            yield {
                "segment": segment.name,
                "position": header.position,
                "kind": FrameKind(header.kind).name.lower(),
                "replica_id": header.replica_id,
                "raft_group": header.raft_group,
                "term": header.term,
                "index": header.index,
                "entry_kind": header.entry_kind,
                "moved": header.moved,
                "synced_before": header.synced_before,
                "payload_bytes": header.payload_bytes,
            }
    finally:
        files.close()


def _used_segments(found: Recovered) -> list[Segment]:
    active = [found.active] if found.active is not None and found.active.used else []
    return found.sealed + active


def _walk_all(
    segments: Sequence[Segment], files: OpenFiles
) -> Iterator[tuple[Segment, tuple[Header, bytes] | Gap]]:
    for segment in segments:
        with files.use(segment.name) as file:
            for item in walk(file, segment.base, 0, segment.used):
                yield segment, item
