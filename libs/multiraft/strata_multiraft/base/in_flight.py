"""Use of the node's shared limits; one object for all raft groups."""

from __future__ import annotations

from strata_multiraft.base.errors import Overloaded
from strata_multiraft.base.options import MultiRaftOptions
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class InFlightLimits:
    """Limits on proposals, their bytes, and waiting reads."""

    __slots__ = ("_bytes", "_proposals", "_reads")

    def __init__(self, options: MultiRaftOptions, metrics: Metrics) -> None:
        self._proposals = Limit(
            "max_proposals_in_flight", options.max_proposals_in_flight, "proposals", metrics=metrics
        )
        self._bytes = Limit(
            "max_bytes_in_flight", options.max_bytes_in_flight, "bytes", metrics=metrics
        )
        self._reads = Limit(
            "max_waiting_reads", options.max_waiting_reads, "reads", metrics=metrics
        )

    def take_proposal(self, size_bytes: int) -> None:
        """Admit a proposal.

        Raises:
            Overloaded: a limit is reached; nothing was taken.
        """
        if not self._proposals.try_take():
            raise Overloaded(f"max_proposals_in_flight ({self._proposals.maximum}) is reached")
        if not self._bytes.try_take(size_bytes):
            self._proposals.give_back()
            raise Overloaded(f"max_bytes_in_flight ({self._bytes.maximum}) is reached")

    def give_back_proposals(self, count: int, size_bytes: int) -> None:
        """Note that proposals were decided."""
        self._proposals.give_back(count)
        self._bytes.give_back(size_bytes)

    def take_read(self) -> None:
        """Admit a waiting read.

        Raises:
            Overloaded: the limit is reached.
        """
        if not self._reads.try_take():
            raise Overloaded(f"max_waiting_reads ({self._reads.maximum}) is reached")

    def give_back_read(self) -> None:
        """Note that a read waits no more."""
        self._reads.give_back()
