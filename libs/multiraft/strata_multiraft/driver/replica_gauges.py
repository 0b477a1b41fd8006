"""Gauges over all replicas of a node."""

from __future__ import annotations

from collections.abc import Mapping

from strata_multiraft.replica.replica import Replica
from strata_raft import Role
from strata_runtime.metrics import Metrics


def observe_replicas(metrics: Metrics, replicas: Mapping[int, Replica]) -> None:
    """Show roles, read-only replicas and apply lag of what is hosted at each scrape."""

    def count_by_role() -> list[tuple[float, Mapping[str, str]]]:
        roles = [replica.role for replica in replicas.values()]
        return [(roles.count(role), {"role": role.name.lower()}) for role in Role]

    metrics.gauge("strata_raft_groups", count_by_role)
    metrics.gauge(
        "strata_raft_read_only",
        lambda: sum(bool(replica.read_only) for replica in replicas.values()),
    )
    metrics.gauge(
        "strata_raft_apply_lag", lambda: sum(replica.apply_lag() for replica in replicas.values())
    )
