"""A storage node's knowledge of the brokers and their clients, learnt from reports and watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from strata_runtime.stalls import OwnStalls
from strata_storage.base.config import StorageOptions
from strata_storage.base.watchers import Watchers
from strata_storage.leading.pending.check_routes import CheckRoutes
from strata_storage.leading.pops.holders import Holders


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """See the module docstring.

    Attributes:
        holders: clients that hold leases, and which of them are alive.
        watchers: brokers that are told of leaders, messages and checks.
        check_routes: finds a broker for a transaction check.
        stalls: times in which this node heard nobody; the expiry of leases has its turns.
    """

    holders: Holders
    watchers: Watchers
    check_routes: CheckRoutes
    stalls: OwnStalls

    @classmethod
    def of(cls, options: StorageOptions) -> Self:
        """Return one that knows no broker yet."""
        watchers, silence_s = Watchers(options.watch), options.holder_silence_s
        stalls = OwnStalls(options.expiry_interval_s)
        return cls(
            Holders(silence_s, stalls),
            watchers,
            CheckRoutes(watchers, silence_s, stalls),
            stalls,
        )

    def used(self) -> dict[str, int]:
        """Return how full each limit is, by its name."""
        return {
            "holders": len(self.holders),
            "watchers": len(self.watchers),
            "checks_max": self.watchers.checks_waiting,
            "interests_max": self.watchers.interests_used,
        }
