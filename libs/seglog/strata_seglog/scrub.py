"""The background scrub: it reads every frame again, a few at a time, and reports damage.

It reads from the oldest segment to the newest and begins again. It does not repair: the owner of a
damaged replica repairs it from another replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_seglog.errors import Corruption
from strata_seglog.footer import Contents
from strata_seglog.frames import FrameKind
from strata_seglog.index import LogIndex
from strata_seglog.ports import DiskFile
from strata_seglog.sealed import read_footer
from strata_seglog.segments import OpenFiles, Segment
from strata_seglog.walk import Gap, walk


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """Result of one step.

    Attributes:
        read_bytes: bytes of frames.
        next_position: where the next step goes on.
        finished: the end of the log was reached; the next step begins at the oldest segment.
        corruptions: what was found, those known before included.
    """

    read_bytes: int
    next_position: int
    finished: bool
    corruptions: tuple[Corruption, ...] = ()


def corruption_among(
    segment: Segment, gap: Gap, index: LogIndex, load: Callable[[int], Contents]
) -> Corruption:
    """Return what a gap among the durable frames of a segment means: whose live entries it took.

    Args:
        segment: up to where it is durable.
        gap: the bad bytes.
        index: of the log.
        load: gives the contents of a sealed segment.
    """
    start = gap.position - segment.base
    end = segment.used if gap.next_position is None else gap.next_position - segment.base
    if gap.header is not None and gap.header.kind != FrameKind.ENTRY:
        # A hard state is in memory and copied into every later segment.
        lost = gap.header.kind == FrameKind.CHECKPOINT
        owners: tuple[int, ...] = (gap.header.replica_id,) if lost else ()
    else:
        contents = index.active if segment.base == index.active.base else load(segment.base)
        owners = tuple(
            section.replica_id
            for section in list(contents.sections.values())
            if any(
                index.locate(section.replica_id, entry_index, load) == (segment.base, offset)
                for entry_index, offset in section.columns.live_between(start, end)
            )
        )
    return Corruption(segment.name, gap.position, gap.reason, owners)


class Scrubber:
    """A position in the log that moves on with every step.

    Args:
        files: through which segments are read.
        judge: says what a gap in a segment means.
        segments: gives all segments, in log order, each only as far as it is durable.
    """

    def __init__(
        self,
        files: OpenFiles,
        judge: Callable[[Segment, Gap], Corruption],
        segments: Callable[[], Sequence[Segment]],
    ) -> None:
        self._files = files
        self._judge = judge
        self._segments = segments
        self._position = 0

    def step(self, max_bytes: int) -> ScrubResult:
        """Read at least one frame and not much more than `max_bytes`.

        Raises:
            OSError: the disk could not read; the next step tries again.
        """
        read_bytes = 0
        corruptions: list[Corruption] = []
        for segment in self._segments():
            if segment.end <= self._position:
                continue
            try:
                with self._files.use(segment.name) as file:
                    read_bytes += self._read(file, segment, max_bytes - read_bytes, corruptions)
            except FileNotFoundError:
                continue  # Freed since the list was made.
            if read_bytes >= max_bytes:
                return ScrubResult(read_bytes, self._position, False, tuple(corruptions))
        end, self._position = self._position, 0
        return ScrubResult(read_bytes, end, True, tuple(corruptions))

    def _read(
        self, file: DiskFile, segment: Segment, max_bytes: int, corruptions: list[Corruption]
    ) -> int:
        start = max(self._position - segment.base, 0)
        at = start
        for item in walk(file, segment.base, start, segment.used):
            if isinstance(item, Gap):
                corruptions.append(self._judge(segment, item))
                at = segment.used
                if item.next_position is not None:
                    at = item.next_position - segment.base
            else:
                at = item[0].end - segment.base
            self._position = segment.base + at
            # After the last frame the trailer is looked at, which is no frame.
            if at - start >= max_bytes and at < segment.used:
                return at - start
        self._position = segment.end
        if segment.sealed and read_footer(file, segment) is None:
            corruptions.append(Corruption(segment.name, segment.end, "footer or trailer"))
        return at - start
