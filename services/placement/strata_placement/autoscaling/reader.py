"""The port through which the autoscaler sees a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_placement.autoscaling.trigger import Trigger
from strata_runtime.errors import StrataError


class ClusterUnreadableError(StrataError):
    """The cluster could not be read; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Past:
    """Rates before now.

    Attributes:
        start_ms: wall time at which the first window begins.
        values: per window, per second.
    """

    start_ms: int
    values: Sequence[float] = ()


class ClusterReader(Protocol):
    """Reads numbers of a cluster; every method raises `ClusterUnreadableError`."""

    async def lag(self, trigger: Trigger) -> float:
        """Return the messages that the trigger's consumer group has not acked."""

    async def stored(self, trigger: Trigger, max_topics: int) -> float:
        """Return how many messages the trigger's topics took since they exist.

        Args:
            trigger: names topics; without names all topics of the cluster count.
            max_topics: of a cluster; with more the reading is refused.
        """

    async def bytes_per_s(self) -> float:
        """Return what storage nodes store and deliver, all together."""

    async def past(self, trigger: Trigger, since_ms: int, step_ms: int) -> Past:
        """Return the trigger's rate in metric windows; nothing where there are no windows.

        Args:
            trigger: names rate and topics.
            since_ms: wall time of the oldest window.
            step_ms: length of the windows that are returned.
        """
