"""Quotas of namespaces and topics, and this broker's part of them.

Role: joins the operators' limits (metadata rows) with the configured defaults, and refuses
requests beyond a limit with TOO_MANY_REQUESTS. Limits per second are token buckets of this broker
alone: its part is the limit divided by the number of live brokers. So a send asks no other process,
and brokers with unequal shares of a namespace's clients give it less than its limit. Topics and
consumer groups are counted in the copy of the metadata: brokers that create at the same moment may
exceed a limit by the number of brokers.

Invariants: without any limit on sends, a send only reads one attribute; memory is bounded by
`max_tracked` (the bucket that was idle longest is forgotten, and an idle bucket is full) and by the
open streams.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple, NoReturn, TypeVar

from strata.meta.v1 import meta_pb2
from strata_broker.base import errors
from strata_broker.base.config import QuotasSection
from strata_broker.base.token_bucket import TokenBucket
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

Key = TypeVar("Key", bound=Hashable)

MESSAGES = "messages_per_s"
BYTES = "bytes_per_s"
TOPICS = "topics"
CONSUMER_GROUPS = "consumer_groups"
CONNECTIONS = "connections"

RATES = (MESSAGES, BYTES)
COUNTS = (TOPICS, CONSUMER_GROUPS, CONNECTIONS)

_UNITS = {
    MESSAGES: "messages/s",
    BYTES: "bytes/s",
    TOPICS: "topics",
    CONSUMER_GROUPS: "consumer groups",
    CONNECTIONS: "connections",
}


class LimitInForce(NamedTuple):
    """One limit of a namespace or of a topic.

    Attributes:
        name: field of `meta.v1.Quota`.
        limit: of the whole cluster; 0: none.
        is_default: it is the configured default, not set for this namespace or topic.
        part: limit of this broker; 0: no limit.
        used: present use, as this broker sees it; 0 for rates.
    """

    name: str
    limit: int
    is_default: bool
    part: float
    used: int


class _Buckets:
    """Buckets of one namespace or topic; a rate without a bucket has no limit."""

    __slots__ = ("by_rate", "version")

    def __init__(self) -> None:
        self.version = -1
        self.by_rate: dict[str, TokenBucket] = {}


class Quotas:
    """See the module docstring. Used on the event loop only.

    Attributes:
        limit_sends: whether any namespace or topic is limited in what it sends.
    """

    def __init__(
        self, view: MetadataView, config: QuotasSection, clock: Clock, *, metrics: Metrics
    ) -> None:
        self._view = view
        self._config = config
        self._clock = clock
        self._burst_s = config.burst_ms / 1000
        self._brokers = 1
        # Raised when a limit or the number of brokers changes: buckets are brought up to date.
        self._version = 0
        # Least recently used first; a namespace as a whole has topic "".
        self._buckets: OrderedDict[Name, _Buckets] = OrderedDict()
        self._creating: Counter[tuple[str, str]] = Counter()
        self._connections: Counter[str] = Counter()
        self._refused = metrics.counter("strata_broker_quota_refused_total")
        self.limit_sends = self._any_rate()
        metrics.gauge("strata_broker_quota_tracked", lambda: len(self._buckets))
        metrics.gauge("strata_broker_quota_used", self._used_shares)
        view.on_quotas(self._changed)
        view.on_placement(self._count_brokers)

    def check_send(self, topic: TopicRow) -> None:
        """Check a request to a topic; `charge_send` counts it once all other checks have passed.

        Call both only if `limit_sends`, and in one turn of the event loop.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        now_s = self._clock.monotonic_s()
        for scope in _scopes(topic):
            for rate, bucket in self._buckets_of(scope, now_s).by_rate.items():
                if not bucket.in_credit(now_s):
                    self._refuse(scope, rate)

    def charge_send(self, topic: TopicRow, message_count: int, size_bytes: int) -> None:
        """Count a request to a topic."""
        now_s = self._clock.monotonic_s()
        for scope in _scopes(topic):
            for rate, bucket in self._buckets_of(scope, now_s).by_rate.items():
                bucket.take(message_count if rate == MESSAGES else size_bytes)

    @contextmanager
    def creating(self, kind: str, namespace: str, count: int = 1) -> Iterator[None]:
        """Count something that is being created until the metadata shows it.

        Args:
            kind: TOPICS or CONSUMER_GROUPS.
            namespace: where.
            count: how many at once.

        Raises:
            RequestError: TOO_MANY_REQUESTS: the namespace has reached its limit.
        """
        limit, _ = self._limit((namespace, ""), kind)
        key = (kind, namespace)
        if limit and self._count(kind, namespace) + self._creating[key] + count > limit:
            self._refuse((namespace, ""), kind)
        self._creating[key] += count
        try:
            yield
        finally:
            _decrement(self._creating, key, count)

    def connected(self, namespace: str) -> None:
        """Count a client's settings stream; `disconnected` ends that.

        Raises:
            RequestError: TOO_MANY_REQUESTS; then it is not counted.
        """
        limit, _ = self._limit((namespace, ""), CONNECTIONS)
        if limit and self._connections[namespace] >= ceil(limit / self._brokers):
            self._refuse((namespace, ""), CONNECTIONS)
        self._connections[namespace] += 1

    def disconnected(self, namespace: str) -> None:
        """Stop counting a stream."""
        _decrement(self._connections, namespace)

    def limits(self, namespace: str, topic: str) -> list[LimitInForce]:
        """Return the limits of a topic, or ("") those of a namespace as a whole."""
        found = []
        for name in RATES if topic else (*RATES, *COUNTS):
            limit, is_default = self._limit((namespace, topic), name)
            part = float(limit)
            if name in RATES:
                part = limit / self._brokers
            elif name == CONNECTIONS:
                part = ceil(limit / self._brokers)
            used = 0 if name in RATES else self._count(name, namespace)
            found.append(LimitInForce(name, limit, is_default, part, used))
        return found

    def _buckets_of(self, scope: Name, now_s: float) -> _Buckets:
        """Return the buckets of a namespace or topic, at the present rates."""
        buckets = self._buckets.get(scope)
        if buckets is None:
            if len(self._buckets) >= self._config.max_tracked:
                self._buckets.popitem(last=False)
            buckets = self._buckets[scope] = _Buckets()
        else:
            self._buckets.move_to_end(scope)
        if buckets.version != self._version:
            buckets.version = self._version
            for rate in RATES:
                self._adjust(buckets.by_rate, rate, self._limit(scope, rate)[0], now_s)
        return buckets

    def _adjust(self, by_rate: dict[str, TokenBucket], rate: str, limit: int, now_s: float) -> None:
        part = limit / self._brokers
        if not limit:
            by_rate.pop(rate, None)
        elif rate in by_rate:
            by_rate[rate].change_rate(part, self._burst_s, now_s)
        else:
            by_rate[rate] = TokenBucket(part, self._burst_s, now_s)

    def _limit(self, scope: Name, name: str) -> tuple[int, bool]:
        """Return (limit, whether it is the default); 0: no limit."""
        row = self._view.quota(*scope)
        if row is not None and row.HasField(name):  # type: ignore[arg-type]
            return getattr(row, name), False
        prefix = "topic" if scope[1] else "namespace"
        return getattr(self._config, f"{prefix}_{name}"), True

    def _count(self, kind: str, namespace: str) -> int:
        if kind == TOPICS:
            return self._view.topic_count(namespace)
        if kind == CONSUMER_GROUPS:
            return self._view.consumer_group_count(namespace)
        return self._connections[namespace]

    def _refuse(self, scope: Name, name: str) -> NoReturn:
        namespace, topic = scope
        self._refused.add(1, {"namespace": namespace, "quota": name})
        subject = f"namespace [{namespace}]" if namespace else "the default namespace"
        if topic:
            subject = f"topic [{topic}] of {subject}"
        limit, _ = self._limit(scope, name)
        raise errors.too_many_requests(f"the quota of {subject} is {limit} {_UNITS[name]}")

    def _changed(self) -> None:
        self._version += 1
        self.limit_sends = self._any_rate()
        if not self.limit_sends:
            self._buckets.clear()

    def _any_rate(self) -> bool:
        config = self._config
        return bool(
            config.namespace_messages_per_s
            or config.namespace_bytes_per_s
            or config.topic_messages_per_s
            or config.topic_bytes_per_s
        ) or any(row.messages_per_s or row.bytes_per_s for row in self._view.quotas())

    def _count_brokers(self) -> None:
        brokers = sum(
            node.state != meta_pb2.NODE_STATE_DOWN and not node.draining
            for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER)
        )
        if max(1, brokers) != self._brokers:
            self._brokers = max(1, brokers)
            self._version += 1

    def _used_shares(self) -> list[tuple[float, dict[str, str]]]:
        """Return the use of namespaces' limits; topics' limits would be too many."""
        now_s = self._clock.monotonic_s()
        shares = []
        for (namespace, topic), buckets in self._buckets.items():
            if topic:
                continue
            for rate, bucket in buckets.by_rate.items():
                shares.append((bucket.used(now_s), {"namespace": namespace, "quota": rate}))
        for row in self._view.quotas():
            if row.topic:
                continue
            for limit in self.limits(row.namespace, ""):
                if limit.name in COUNTS and limit.limit:
                    labels = {"namespace": row.namespace, "quota": limit.name}
                    shares.append((limit.used / limit.part, labels))
        return shares


def _scopes(topic: TopicRow) -> tuple[Name, Name]:
    return (topic.namespace, ""), (topic.namespace, topic.name)


def _decrement(counts: Counter[Key], key: Key, by: int = 1) -> None:
    counts[key] -= by
    if not counts[key]:
        del counts[key]
