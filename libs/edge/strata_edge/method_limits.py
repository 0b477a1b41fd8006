"""Limits of one call of a method: the size of its request and the wait that it may ask for."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class MethodLimits:
    """Limits of one method.

    Attributes:
        max_request_bytes: of one request message; a larger one ends with RESOURCE_EXHAUSTED.
        max_time_s: the longest time that a handler sees as left, whatever the client said.
    """

    max_request_bytes: int = 64 * KIB
    max_time_s: float = 30.0
