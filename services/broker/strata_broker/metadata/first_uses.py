"""Limits on what calls make by naming it: consumer groups, topics and tables.

A client may choose any name in any namespace, and what it makes stays in the metadata and in the
memory of every broker until it is deleted. So the pace of such creations is limited: of the broker,
of a namespace, of a client and of an address. A client and an address have less than the others, so
that neither uses up what all need, and a flood of one namespace leaves room for others (rule 34).
The same holds for creations under way. Beyond a number of consumer groups in a namespace, an
operator has to create further ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from strata_broker.base.audit import FirstUse
from strata_broker.base.errors import too_many_requests
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.base.shares import Owner, OwnerShares, all_owners_of
from strata_broker.base.token_bucket import TokenBucket
from strata_broker.metadata.metadata import MetadataView
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_BURST_S = 30.0
# More than are admitted until a bucket is full again, and forgetting a full one loses nothing.
_MAX_REMEMBERED = 10_000
_RATE = "metadata.auto_creations_per_s"
_IN_FLIGHT = "metadata.max_creations_in_flight"
_WHERE = {
    "client": "by this client",
    "address": "from this address",
    "namespace": "in this namespace",
}


class FirstUses:
    """See the module docstring. Used on the event loop only.

    Args:
        view: tells how many consumer groups there are.
        config: limits.
        clock: monotonic time.
        metrics: how much was refused.
    """

    def __init__(
        self, view: MetadataView, config: MetadataSection, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._view = view
        self._config = config
        self._clock = clock
        now_s = clock.monotonic_s()
        self._all = TokenBucket(config.auto_creations_per_s, _BURST_S, now_s)
        self._rates = {
            "client": config.auto_creations_per_s_per_client,
            "address": config.auto_creations_per_s_per_address,
            "namespace": config.auto_creations_per_s_per_namespace,
        }
        # By kind and name; who used it last is behind. Owners that are not here have their burst.
        self._buckets: dict[str, OrderedDict[str, TokenBucket]] = {
            kind: OrderedDict() for kind in self._rates
        }
        self._in_flight = 0
        most = {
            "client": config.max_creations_in_flight_per_client,
            "address": config.max_creations_in_flight_per_address,
        }
        self._shares = OwnerShares("creations", most, metrics)
        self._refused = metrics.counter("strata_broker_share_refused_total")

    def __len__(self) -> int:
        """Return how many clients, addresses and namespaces are remembered."""
        return sum(map(len, self._buckets.values()))

    def check_consumer_groups(self, namespace: str) -> None:
        """Check that a call may make one more consumer group of a namespace.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        most = self._config.max_auto_groups_per_namespace
        if self._view.consumer_group_count(namespace) >= most:
            raise too_many_requests(
                f"the namespace has {most} consumer groups; an operator has to create further ones "
                "(metadata.max_auto_groups_per_namespace)"
            )

    def begin(self, what: str, namespace: str, use: FirstUse) -> Sequence[Owner]:
        """Admit a creation that a client's call needs.

        Args:
            what: is created, in the plural; for the refusal.
            namespace: of it.
            use: the call.

        Returns:
            Who holds a share of the creations under way: `end` must give it back.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        sharers = _sharers(use)
        self._take_room(what, sharers)
        try:
            self._take_pace(what, (*sharers, ("namespace", namespace)))
        except RequestError:
            self.end(sharers)
            raise
        return sharers

    def begin_own(self, what: str) -> Sequence[Owner]:
        """Admit a creation that the broker itself needs, or an operator wants: it has no pace.

        Raises:
            RequestError: TOO_MANY_REQUESTS: too many creations are under way.
        """
        self._take_room(what, ())
        return ()

    def end(self, sharers: Sequence[Owner]) -> None:
        """A creation has ended: give back its shares."""
        self._in_flight -= 1
        self._shares.give_back(sharers)

    def _take_room(self, what: str, sharers: Sequence[Owner]) -> None:
        if self._in_flight >= self._config.max_creations_in_flight:
            raise too_many_requests(f"too many {what} are being created ({_IN_FLIGHT})")
        if not self._shares.try_take(sharers):
            raise too_many_requests(
                f"too many {what} are being created by this client or from its address "
                f"({_IN_FLIGHT}_per_client, {_IN_FLIGHT}_per_address)"
            )
        self._in_flight += 1

    def _take_pace(self, what: str, owners: Sequence[Owner]) -> None:
        now_s = self._clock.monotonic_s()
        for kind, name in owners:
            bucket = self._buckets[kind].get(name)
            if bucket is not None and not bucket.in_credit(now_s):
                raise self._refusal(what, kind, _WHERE[kind], f"{_RATE}_per_{kind}")
        if not self._all.in_credit(now_s):
            raise self._refusal(what, "all", "by this broker", _RATE)
        self._all.take(1)
        for kind, name in owners:
            self._bucket(kind, name, now_s).take(1)

    def _bucket(self, kind: str, name: str, now_s: float) -> TokenBucket:
        buckets = self._buckets[kind]
        bucket = buckets.get(name)
        if bucket is None:
            if len(buckets) >= _MAX_REMEMBERED:
                buckets.popitem(last=False)
            bucket = buckets[name] = TokenBucket(self._rates[kind], _BURST_S, now_s)
        buckets.move_to_end(name)
        return bucket

    def _refusal(self, what: str, by: str, where: str, key: str) -> RequestError:
        self._refused.add(1, {"of": "pace of creations", "by": by})
        return too_many_requests(f"too many {what} are being created {where} ({key})")


def _sharers(use: FirstUse) -> list[Owner]:
    """Return who needs a creation; a connection has no share, as its client and address have."""
    owners = all_owners_of(use.who.client_id, use.who.peer)
    return [owner for owner in owners if owner[0] != "connection"]
