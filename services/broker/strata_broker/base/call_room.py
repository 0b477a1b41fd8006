"""Bounds the calls of one answer that are under way: of all clients, of one, and of an address."""

from __future__ import annotations

from collections.abc import Sequence

from strata_broker.base import errors
from strata_broker.base.config import CallsSection
from strata_broker.base.shares import Owner, OwnerShares, SharedLimit, most_each
from strata_broker.base.watermarks import show_watermark
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class CallRoom:
    """See the module docstring. Used on the event loop only.

    Args:
        config: the limits.
        metrics: where use and refusals are counted.
    """

    __slots__ = ("_calls",)

    def __init__(self, config: CallsSection, metrics: Metrics) -> None:
        most = most_each(config.max_in_flight_per_client, config.max_in_flight_per_address)
        self._calls = SharedLimit(
            Limit("calls", config.max_in_flight, "calls", metrics=metrics),
            OwnerShares("calls", most, metrics),
        )
        show_watermark(metrics, "client_manager", lambda: self._calls.used)

    def take(self, owners: Sequence[Owner]) -> None:
        """Take room for a call; `give_back` it.

        Raises:
            RequestError: TOO_MANY_REQUESTS, nothing was taken.
        """
        if self._calls.try_take(owners) is not None:
            raise errors.too_many_requests()

    def give_back(self, owners: Sequence[Owner]) -> None:
        """Return what `take` took."""
        self._calls.give_back(owners)
