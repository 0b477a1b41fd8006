"""Tells the audit trail of a process who was refused before its call was looked at.

A caller whose certificate is of a wrong role, or that has none of the cluster, is one event. A
flood of them is cut to a rate; the next event says how many were left out.
"""

from __future__ import annotations

from strata_runtime.audit import AuditSink, NoAuditSink
from strata_runtime.clock import Clock, SystemClock

MAX_REFUSALS_PER_S = 10
"""Refusals that become events per second, unless the configuration says otherwise."""

WRONG_ROLE = "the call is not for the caller's role"
"""Reason of a refusal: the certificate is of the cluster, and of another kind of process."""


class AuditedRefusals:
    """See the module docstring. Used on the event loop only.

    Attributes:
        sink: takes the events; a process sets it when it has one.

    Args:
        max_per_s: events per second.
        clock: time of events; None: the machine's.
    """

    def __init__(self, max_per_s: int = MAX_REFUSALS_PER_S, clock: Clock | None = None) -> None:
        self.sink: AuditSink = NoAuditSink()
        self._max_per_s = max_per_s
        self._clock = clock or SystemClock()
        self._second = -1
        self._told = 0
        self._left_out = 0

    def tell(self, peer: str, reason: str, *, role: str = "", rpc: str = "") -> None:
        """Record a refusal.

        Args:
            peer: address of the caller.
            reason: short.
            role: in the caller's certificate; empty: none was seen.
            rpc: path of the call; empty: the connection was refused.
        """
        second = int(self._clock.monotonic_s())
        if second != self._second:
            self._second, self._told = second, 0
        if self._told >= self._max_per_s:
            self._left_out += 1
            return
        self._told += 1
        event: dict[str, str | int] = {
            "time_ms": self._clock.wall_ms(),
            "event": "refused",
            "outcome": "refused",
            "user": "",
            "role": role,
            "peer": peer,
            "rpc": rpc,
            "reason": reason,
        }
        if self._left_out:
            event["left_out"] = self._left_out
            self._left_out = 0
        self.sink.write(event)
