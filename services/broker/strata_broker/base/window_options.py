"""Options of metric windows; by themselves, because every process reads the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from strata_runtime.windows import WINDOW_MS

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Options of metric windows.

    Attributes:
        publish: send them to the topic; else they only show as metrics.
        length_ms: of the broker's own windows; storage nodes are asked twice as often.
        call_timeout_ms: for one question to a storage node.
        queue_count: of the topic, when this broker makes it.
        retention_ms: likewise.
        max_unpublished: batches of windows kept until they are stored; the oldest goes.
    """

    publish: bool = True
    length_ms: int = WINDOW_MS
    call_timeout_ms: int = 1_000
    queue_count: int = 2
    retention_ms: int = 7 * _DAY_MS
    max_unpublished: int = 100
