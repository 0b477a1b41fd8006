"""Budgets per class of calls: calls and bytes under way, and their limits.

A connection has one `Budgets` at each end. The budgets of a server's connections add up in its
`Usage`, which the metrics show.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata_angelia.classes import CallClass
from strata_angelia.options import AngeliaOptions, ClassLimits
from strata_angelia.ports import OVERLOADED, AngeliaError
from strata_runtime.metrics import Gauge, Metrics


class Usage:
    """Calls and bytes under way at a server, by class.

    Args:
        transport: label of the metrics.
        metrics: where it shows, and where refusals are counted.
    """

    def __init__(self, transport: str, metrics: Metrics) -> None:
        self.calls = dict.fromkeys(CallClass, 0)
        self.bytes = dict.fromkeys(CallClass, 0)
        self._labels = {
            call_class: {"transport": transport, "class": call_class.value}
            for call_class in CallClass
        }
        self._refused = metrics.counter("strata_angelia_refused_calls_total")
        self._gauges: tuple[Gauge, ...] = (
            metrics.gauge("strata_angelia_calls", lambda: self._series(self.calls)),
            metrics.gauge("strata_angelia_request_bytes", lambda: self._series(self.bytes)),
        )

    def refused(self, call_class: CallClass) -> None:
        """Count a refusal."""
        self._refused.add(1, self._labels[call_class])

    def close(self) -> None:
        """Take it off the scrape."""
        for gauge in self._gauges:
            gauge.close()

    def _series(self, amounts: Mapping[CallClass, int]) -> list[tuple[float, Mapping[str, str]]]:
        return [(amount, self._labels[call_class]) for call_class, amount in amounts.items()]


class Budgets:
    """Calls and bytes under way on one connection, by class.

    Invariant: what `take` took of a class is given back by `give_back` exactly once.

    Args:
        options: the limits of each class.
        usage: what all connections of a server add up to; None at the calling side.
    """

    __slots__ = ("_bytes", "_calls", "_limits", "_usage")

    def __init__(self, options: AngeliaOptions, usage: Usage | None = None) -> None:
        self._limits = options.classes
        self._usage = usage
        self._calls = dict.fromkeys(CallClass, 0)
        self._bytes = dict.fromkeys(CallClass, 0)

    @property
    def empty(self) -> bool:
        """Whether nothing is under way."""
        return not any(self._calls.values())

    def limits(self, call_class: CallClass) -> ClassLimits:
        """Return what a class may have under way."""
        return self._limits[call_class]

    def fits(self, call_class: CallClass, request_bytes: int) -> bool:
        """Whether a request's bytes fit; a single one always does."""
        used = self._bytes[call_class]
        return not used or used + request_bytes <= self._limits[call_class].max_bytes

    def check_calls(self, call_class: CallClass) -> None:
        """Check that one more call of a class fits.

        Raises:
            AngeliaError: OVERLOADED.
        """
        limit = self._limits[call_class].max_calls
        if self._calls[call_class] >= limit:
            self._refuse(call_class, f"{limit} calls of class {call_class.value} are under way")

    def check_bytes(self, call_class: CallClass) -> None:
        """Check that the budget of bytes is not used up.

        At the serving side: a caller holds back what does not fit, so only one that does not,
        or whose cancelled calls have not ended here, is refused.

        Raises:
            AngeliaError: OVERLOADED.
        """
        limit = self._limits[call_class].max_bytes
        if self._bytes[call_class] >= limit:
            self._refuse(call_class, f"{limit} bytes of class {call_class.value} are under way")

    def take(self, call_class: CallClass, request_bytes: int) -> None:
        """A call begins."""
        self._calls[call_class] += 1
        self._bytes[call_class] += request_bytes
        if self._usage is not None:
            self._usage.calls[call_class] += 1
            self._usage.bytes[call_class] += request_bytes

    def give_back(self, call_class: CallClass, request_bytes: int) -> None:
        """A call has ended."""
        self._calls[call_class] -= 1
        self._bytes[call_class] -= request_bytes
        if self._usage is not None:
            self._usage.calls[call_class] -= 1
            self._usage.bytes[call_class] -= request_bytes

    def _refuse(self, call_class: CallClass, reason: str) -> None:
        if self._usage is not None:
            self._usage.refused(call_class)
        raise AngeliaError(OVERLOADED, reason)
