"""Finds the parts of a checkpoint among the frames of a log (rule 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strata_seglog.errors import CorruptFrame
from strata_seglog.frames import FrameKind, Header, checkpoint_part
from strata_seglog.segments import Segment
from strata_seglog.walk import Gap

Walked = tuple[Segment, tuple[Header, bytes] | Gap]
"""A frame or a gap, and the segment that it is in."""


def part_positions(
    walked: Iterable[Walked],
    replica_id: int,
    position: int,
    on_gap: Callable[[Segment, Gap], None],
) -> list[int]:
    """Return the log positions of the parts of a complete checkpoint, in order.

    Args:
        walked: the log from the first part on.
        replica_id: whose it is.
        position: of its first part.
        on_gap: gets damage on the way; parts are numbered, so none is missed unseen.

    Raises:
        CorruptFrame: a part is missing.
    """
    positions: list[int] = []
    for segment, item in walked:
        if isinstance(item, Gap):
            on_gap(segment, item)
            continue
        header, payload = item
        if header.replica_id != replica_id or header.kind != FrameKind.CHECKPOINT:
            continue
        part, last = checkpoint_part((payload,))
        if part != len(positions):
            raise CorruptFrame(position, "", f"checkpoint without part {len(positions)}")
        positions.append(header.position)
        if last:
            return positions
    raise CorruptFrame(position, "", "checkpoint without its last part")
