"""Limits of the CommitLog."""

from __future__ import annotations

from dataclasses import dataclass

from strata_seglog.footer import seal_bytes
from strata_seglog.frames import HEADER_BYTES

_MIB = 1024 * 1024
# Offsets in a segment are kept in 32 bits.
_SEGMENT_BYTES_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Limits of one CommitLog.

    Attributes:
        segment_bytes: length of a new segment; also bounds one write and the time of recovery.
        max_frame_bytes: longest payload; at most a segment without footer. The default of 0
            means that.
        recent_bytes: memory for the newest entries.
        footer_cache_segments: sealed segments whose footers are kept in memory.
        footer_cache_bytes: the same, by size.
        open_files: idle handles of segments kept open for reading.
        zero_ahead_bytes: how far ahead of the end zeros are written (see `prepare.py`).
        name: value of the label `log` of the metrics.
    """

    segment_bytes: int = 256 * _MIB
    max_frame_bytes: int = 64 * _MIB
    recent_bytes: int = 16 * _MIB
    footer_cache_segments: int = 64
    footer_cache_bytes: int = 64 * _MIB
    open_files: int = 64
    zero_ahead_bytes: int = 16 * _MIB
    name: str = "storage"

    def __post_init__(self) -> None:
        if not HEADER_BYTES + seal_bytes(1, 1) < self.segment_bytes <= _SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes {self.segment_bytes} is out of range")
