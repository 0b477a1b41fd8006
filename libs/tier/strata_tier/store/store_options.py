"""Limits of one object store: requests, bytes, retries, memory."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Limits of one opened store.

    Attributes:
        max_requests_in_flight: requests at once, also the threads of a driver that blocks.
        requests_waiting: calls that wait for a turn; one more is refused as throttled.
        requests_per_s: budget of requests; None: as many as there are turns.
        upload_bytes_per_s: budget of bytes sent; None: no budget.
        download_bytes_per_s: budget of bytes received; None: no budget.
        attempts: tries of one request before its error is the caller's.
        first_pause_ms: pause before the first repeat; it doubles with each.
        max_pause_ms: longest pause.
        connect_timeout_ms: how long a connection may take to open.
        request_timeout_ms: how long one request may take ...
        slowest_bytes_per_s: ... beside its bytes at this rate.
        part_bytes: what an upload of unknown or great length is cut into. At least 5 MiB for S3,
            which takes 10,000 parts.
        parts_in_flight: parts of one upload sent at once, where the store takes them so.
    """

    max_requests_in_flight: int = 16
    requests_waiting: int = 1024
    requests_per_s: float | None = None
    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    attempts: int = 6
    first_pause_ms: int = 100
    max_pause_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    request_timeout_ms: int = 20_000
    slowest_bytes_per_s: int = _MIB
    part_bytes: int = 16 * _MIB
    parts_in_flight: int = 3

    def __post_init__(self) -> None:
        for name in ("max_requests_in_flight", "attempts", "part_bytes", "parts_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def timeout_s(self, body_bytes: int) -> float:
        """How long a request that moves `body_bytes` may take, in seconds."""
        return self.request_timeout_ms / 1000 + body_bytes / self.slowest_bytes_per_s
