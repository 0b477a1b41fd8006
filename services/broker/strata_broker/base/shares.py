"""Shares of a broker's limits: no client or connection uses up what is for all (rule 34)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto

from strata_broker.base import errors
from strata_edge.addresses import network_of_peer
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.shares import HeldShares

Owner = tuple[str, str]
"""(kind, name)."""

SHARING = ("client", "connection")
"""The kinds of owners of every call."""

ALL_SHARING = (*SHARING, "address")
"""The same with the host of a connection, which many clients behind a load balancer share."""


def owners_of(client_id: str, peer: str) -> tuple[Owner, ...]:
    """Return the owners of a call's resources.

    Args:
        client_id: from the call's metadata; a client chooses it freely.
        peer: address of its connection, `host:port`.
    """
    return ("client", client_id), ("connection", peer)


def all_owners_of(client_id: str, peer: str) -> tuple[Owner, ...]:
    """Return the owners of a call's resources, the address among them.

    Args:
        client_id: from the call's metadata; "" if the call has none.
        peer: address of its connection, `host:port`.
    """
    places = ("connection", peer), ("address", network_of_peer(peer))
    return (("client", client_id), *places) if client_id else places


def most_each(per_client: int, per_address: int) -> dict[str, int]:
    """Return the limits of `all_owners_of`: a connection has as much as a client."""
    return dict(zip(ALL_SHARING, (per_client, per_client, per_address), strict=True))


class Full(Enum):
    """Limits that have no room for one thing more."""

    SHARE = auto()
    ALL = auto()


class OwnerShares(HeldShares):
    """`HeldShares` whose refusals are counted.

    Args:
        of: what is counted, label `of` of the metric.
        most: how much one owner of a kind may hold.
        metrics: where refusals are counted.
    """

    __slots__ = ()

    def __init__(self, of: str, most: Mapping[str, int], metrics: Metrics) -> None:
        refused = metrics.counter("strata_broker_share_refused_total")
        super().__init__(of, most, lambda owner: refused.add(1, {"of": of, "by": owner[0]}))


class SharedLimit:
    """A limit for all together, of which no owner has more than its share; on the event loop only.

    Args:
        limit: for all.
        shares: of owners.
    """

    __slots__ = ("_limit", "_shares")

    def __init__(self, limit: Limit, shares: OwnerShares) -> None:
        self._limit = limit
        self._shares = shares

    @property
    def used(self) -> int:
        """How much all hold."""
        return self._limit.used

    def try_take(self, owners: Sequence[Owner], n: int = 1) -> Full | None:
        """Take `n` for all owners of one thing, or nothing; return the limit that has no room."""
        if not self._shares.try_take(owners, n):
            return Full.SHARE
        if not self._limit.try_take(n):
            self._shares.give_back(owners, n)
            return Full.ALL
        return None

    def give_back(self, owners: Sequence[Owner], n: int = 1) -> None:
        """Return what `try_take` took."""
        self._limit.give_back(n)
        self._shares.give_back(owners, n)

    @contextmanager
    def holding(self, owners: Sequence[Owner], n: int, texts: Mapping[Full, str]) -> Iterator[None]:
        """Hold `n` until the block ends.

        Args:
            owners: of one thing.
            n: how much it takes.
            texts: of the refusal, by what has no room.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        full = self.try_take(owners, n)
        if full is not None:
            raise errors.too_many_requests(texts[full])
        try:
            yield
        finally:
            self.give_back(owners, n)


class CallShares:
    """Shares of calls under way, and of the bytes of their requests; used on the event loop only.

    Args:
        of: what the calls are, in the plural; part of the label `of` of the metric.
        most_calls: how many one owner of a kind may hold.
        most_bytes: the same in bytes of requests; None: bytes are not counted.
        metrics: where refusals are counted.
        text: of refusals.
    """

    __slots__ = ("_bytes", "_calls", "_text")

    def __init__(
        self,
        of: str,
        most_calls: Mapping[str, int],
        most_bytes: Mapping[str, int] | None = None,
        *,
        metrics: Metrics,
        text: str = errors.FLOW_LIMIT,
    ) -> None:
        self._text = text
        self._calls = OwnerShares(of, most_calls, metrics)
        self._bytes = None
        if most_bytes is not None:
            self._bytes = OwnerShares(f"bytes of {of}", most_bytes, metrics)

    def __len__(self) -> int:
        """Return how many owners have a call under way."""
        return len(self._calls)

    @contextmanager
    def holding(self, owners: Sequence[Owner], size_bytes: int = 0) -> Iterator[None]:
        """Hold a call's share until the block ends.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        if not self._calls.try_take(owners):
            raise errors.too_many_requests(self._text)
        try:
            if self._bytes is None:
                yield
                return
            if not self._bytes.try_take(owners, size_bytes):
                raise errors.too_many_requests(self._text)
            try:
                yield
            finally:
                self._bytes.give_back(owners, size_bytes)
        finally:
            self._calls.give_back(owners)
