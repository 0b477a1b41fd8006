"""Limits on consumer groups that a receive creates by naming them.

A client may choose any name, and a consumer group stays in the metadata and in the memory of every
broker until it is deleted. So the rate of such creations is limited, and so is the number of
consumer groups in a namespace; beyond it an operator has to create them.
"""

from __future__ import annotations

from collections import OrderedDict

from strata_broker.base.config import MetadataSection
from strata_broker.base.errors import too_many_requests
from strata_broker.base.token_bucket import TokenBucket
from strata_broker.metadata.metadata import MetadataView
from strata_runtime.clock import Clock

# An idle bucket is full, so forgetting it loses nothing.
_MAX_REMEMBERED = 1_000
_BURST_S = 30.0


class AutoGroups:
    """See the module docstring. Used on the event loop only."""

    def __init__(self, view: MetadataView, config: MetadataSection, clock: Clock) -> None:
        self._view = view
        self._config = config
        self._clock = clock
        # Least recently used first.
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def admit(self, namespace: str) -> None:
        """Admit the creation of one more consumer group.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        most = self._config.max_auto_groups_per_namespace
        if self._view.consumer_group_count(namespace) >= most:
            raise too_many_requests(
                f"the namespace has {most} consumer groups; an operator has to create further ones "
                "(metadata.max_auto_groups_per_namespace)"
            )
        now_s = self._clock.monotonic_s()
        bucket = self._buckets.pop(namespace, None)
        if bucket is None:
            bucket = TokenBucket(self._config.auto_groups_per_s, _BURST_S, now_s)
            if len(self._buckets) >= _MAX_REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets[namespace] = bucket
        if not bucket.in_credit(now_s):
            raise too_many_requests(
                "too many consumer groups are being created (metadata.auto_groups_per_s)"
            )
        bucket.take(1)
