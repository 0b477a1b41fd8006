"""How fast new filter expressions are read: by a broker, and for one client and one address.

Parsing a long expression takes tens of milliseconds of the event loop. The pace of an address is
below that of the broker, so that nobody at one address uses up what others need (rule 34).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from strata_broker.base.receive_config import ReceiveSection
from strata_broker.base.shares import Owner
from strata_broker.base.token_bucket import TokenBucket
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# An idle broker parses two of the longest expressions at once.
_BURST_S = 1.0
_KEY = "receive.filter_characters_per_s"


class FilterPace:
    """See the module docstring. Used on the event loop only.

    Args:
        config: the paces, and how many clients and addresses are remembered.
        clock: monotonic time.
        metrics: how much was refused.
    """

    def __init__(self, config: ReceiveSection, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._all = TokenBucket(config.filter_characters_per_s, _BURST_S, clock.monotonic_s())
        self._rates = {
            "client": config.filter_characters_per_s_per_client,
            "address": config.filter_characters_per_s_per_address,
        }
        # By kind and name; who used it last is behind. Owners that are not here have their burst.
        self._buckets: dict[str, OrderedDict[str, TokenBucket]] = {
            kind: OrderedDict() for kind in self._rates
        }
        self._max_owners = config.max_cached_filters
        self._refused = metrics.counter("strata_broker_unread_filters_total")

    @property
    def owner_count(self) -> int:
        """Number of clients and addresses whose pace is remembered."""
        return sum(map(len, self._buckets.values()))

    def take(self, characters: int, owners: Sequence[Owner]) -> None:
        """Count an expression that is to be read.

        Args:
            characters: its length.
            owners: its client and its address.

        Raises:
            RequestError: TOO_MANY_REQUESTS: one of them, or the broker, has read too much lately.
        """
        now_s = self._clock.monotonic_s()
        for kind, name in owners:
            bucket = self._buckets[kind].get(name)
            if bucket is not None and not bucket.in_credit(now_s):
                raise self._refusal(kind, f"from this {kind}", f"{_KEY}_per_{kind}")
        if not self._all.in_credit(now_s):
            raise self._refusal("all", "at this broker", _KEY)
        self._all.take(characters)
        for kind, name in owners:
            self._bucket(kind, name, now_s).take(characters)

    def _bucket(self, kind: str, name: str, now_s: float) -> TokenBucket:
        buckets = self._buckets[kind]
        bucket = buckets.get(name)
        if bucket is None:
            if len(buckets) >= self._max_owners:
                # It has had the longest time to gather its burst again.
                buckets.popitem(last=False)
            bucket = buckets[name] = TokenBucket(self._rates[kind], _BURST_S, now_s)
        buckets.move_to_end(name)
        return bucket

    def _refusal(self, by: str, where: str, key: str) -> RequestError:
        self._refused.add(1, {"by": by})
        return RequestError(
            Code.TOO_MANY_REQUESTS, f"too many new filter expressions {where}: try again ({key})"
        )
