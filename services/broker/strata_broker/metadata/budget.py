"""Back-pressure for sends: limits on the bytes of sends that wait for an answer.

There are three limits: the broker's, one per namespace (so that one tenant's flood leaves room for
other tenants) and one per raft group (so that one slow raft group does not fill the broker). Idle
namespaces and raft groups are forgotten when there are too many. Each client, connection and
address has a share (rule 34). Shares are counted only while much waits: until then nobody can hold
too much, and a send costs nothing more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from strata_broker.base.config import BrokerConfig, SendSection
from strata_broker.base.shares import Owner, OwnerShares, all_owners_of, most_each
from strata_broker.metadata.requests import caller_of
from strata_edge.ports import HotCall
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

Key = TypeVar("Key", bound=Hashable)

_MAX_REMEMBERED = 10_000
# Shares are counted while more than this part of the broker's limit is taken.
_SHARED_FROM = 1 / 8


class SendBudget:
    """Bytes of requests in flight."""

    def __init__(self, config: SendSection, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._broker = Limit(
            "sends in flight", config.max_bytes_in_flight, "bytes", metrics=metrics
        )
        self._shared_from_bytes = int(config.max_bytes_in_flight * _SHARED_FROM)
        most = most_each(
            config.max_bytes_in_flight_per_client, config.max_bytes_in_flight_per_address
        )
        self._shares = OwnerShares("send bytes", most, metrics)
        self._namespaces: dict[str, Limit] = {}
        self._raft_groups: dict[int, Limit] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that are charged now."""
        return self._broker.used

    @property
    def counts_shares(self) -> bool:
        """Whether so much waits that each client must keep to its share."""
        return self._broker.used >= self._shared_from_bytes

    def sharers(self, call: HotCall) -> Sequence[Owner]:
        """Return the owners whose shares a send is charged to; none while little waits."""
        if not self.counts_shares:
            return ()
        return all_owners_of(caller_of(call.metadata).client_id, call.peer)

    def try_take(
        self, namespace: str, raft_group: int, size_bytes: int, sharers: Sequence[Owner] = ()
    ) -> bool:
        """Charge a request, to the raft group of its first message; False: a limit is reached."""
        in_namespace = self._namespaces.get(namespace)
        if in_namespace is None:
            name = f"sends in flight of namespace [{namespace}]"
            most_bytes = self._config.max_namespace_bytes_in_flight
            in_namespace = self._add(self._namespaces, namespace, name, most_bytes)
        in_raft_group = self._raft_groups.get(raft_group)
        if in_raft_group is None:
            name = f"sends in flight to raft group {raft_group}"
            most_bytes = self._config.max_raft_group_bytes_in_flight
            in_raft_group = self._add(self._raft_groups, raft_group, name, most_bytes)
        if not self._broker.try_take(size_bytes):
            return False
        if in_namespace.try_take(size_bytes):
            if in_raft_group.try_take(size_bytes):
                if not sharers or self._shares.try_take(sharers, size_bytes):
                    return True
                in_raft_group.give_back(size_bytes)
            in_namespace.give_back(size_bytes)
        self._broker.give_back(size_bytes)
        return False

    def give_back(
        self, namespace: str, raft_group: int, size_bytes: int, sharers: Sequence[Owner] = ()
    ) -> None:
        """Give back the charge of a request."""
        if sharers:
            self._shares.give_back(sharers, size_bytes)
        self._broker.give_back(size_bytes)
        self._namespaces[namespace].give_back(size_bytes)
        self._raft_groups[raft_group].give_back(size_bytes)

    def _add(self, limits: dict[Key, Limit], key: Key, name: str, most_bytes: int) -> Limit:
        if len(limits) >= _MAX_REMEMBERED:
            for idle in [known for known, limit in limits.items() if not limit.used]:
                limits.pop(idle).close()
        limit = limits[key] = Limit(name, most_bytes, "bytes", metrics=self._metrics)
        return limit


def max_requests(config: BrokerConfig) -> int:
    """Return the sum of all limits on receives, streams, creations and sends that wait."""
    return (
        config.receive.max_parked
        + config.telemetry.max_streams
        + config.metadata.max_creations_in_flight
        + config.send.max_bytes_in_flight // 1024
    )
