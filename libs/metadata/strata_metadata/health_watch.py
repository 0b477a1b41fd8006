"""Examines a cluster several times a second; log lines, metrics and callers share one result.

Examining thousands of raft groups is expensive, so nothing is judged again while the version of the
facts is unchanged and the judge waits for no moment to pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

from strata_metadata.cluster_health import STATUSES, ClusterJudge, ClusterPicture, Facts
from strata_runtime.clock import Clock
from strata_runtime.health import HealthLog
from strata_runtime.metrics import Metrics, MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_cluster_status",
        "gauge",
        "1",
        "Health of the cluster, as this process sees it: 0 healthy, 1 degraded, 2 down.",
    ),
    MetricSpec(
        "strata_cluster_raft_groups",
        "gauge",
        "1",
        "Raft groups by state (SERVING, DEGRADED, LEADERLESS), as this process sees them.",
        ("state",),
    ),
    MetricSpec(
        "strata_cluster_nodes",
        "gauge",
        "1",
        "Nodes by kind and state, as this process sees them.",
        ("kind", "state"),
    ),
)

INTERVAL_S = 0.25

GiveFacts = Callable[[], "tuple[Hashable, Callable[[], Facts]] | None"]
"""Gives a version of the facts, and a way to get them; None: this process does not look now."""


class HealthWatch:
    """See the module docstring.

    Args:
        component: of the log lines.
        give: what is known.
        clock: time.
        metrics: where the picture shows.
        on_look: called after every look.
    """

    def __init__(
        self,
        component: str,
        give: GiveFacts,
        clock: Clock,
        *,
        metrics: Metrics,
        on_look: Callable[[ClusterPicture], None] = lambda picture: None,
    ) -> None:
        metrics.declare(METRICS)
        self._give = give
        self._judge = ClusterJudge(clock)
        self._log = HealthLog(component, clock)
        self._on_look = on_look
        self._version: Hashable = None
        self._looks = False
        self.picture = ClusterPicture()
        self._gauges = [
            metrics.gauge("strata_cluster_status", self._status),
            metrics.gauge("strata_cluster_raft_groups", self._raft_groups),
            metrics.gauge("strata_cluster_nodes", self._nodes),
        ]

    async def run(self, start_after_s: float = 0.0) -> None:
        """Look until cancelled.

        Args:
            start_after_s: time to hear of the others before anything is said of them.
        """
        await asyncio.sleep(start_after_s)
        while True:
            self.check()
            await asyncio.sleep(INTERVAL_S)

    def check(self) -> ClusterPicture:
        """Look once; return what there is to see."""
        given = self._give()
        self._looks = given is not None
        if given is None:
            # The next caller begins anew.
            self._version, self.picture = None, ClusterPicture()
            return self.picture
        version, get = given
        if version != self._version or self._judge.is_waiting:
            self._version = version
            self.picture = self._judge.judge(get())
            self._log.take(self.picture.problems)
        self._on_look(self.picture)
        return self.picture

    def is_stale(self, metadata_age_s: float) -> bool:
        """Whether metadata of this age is old; a part of the facts' version."""
        return self._judge.is_stale(metadata_age_s)

    def aged(self, metadata_age_s: float) -> ClusterPicture:
        """Return the picture with the age that the metadata have now."""
        return replace(self.picture, metadata_age_s=metadata_age_s)

    def close(self) -> None:
        """Take the gauges away."""
        for gauge in self._gauges:
            gauge.close()

    def _status(self) -> list[tuple[float, dict[str, str]]]:
        return [(STATUSES.index(self.picture.status), {})] if self._looks else []

    def _raft_groups(self) -> list[tuple[float, dict[str, str]]]:
        if not self._looks:
            return []
        return [
            (count, {"state": state}) for state, count in self.picture.groups_by_state().items()
        ]

    def _nodes(self) -> list[tuple[float, dict[str, str]]]:
        counts = Counter((each.kind, each.state) for each in self.picture.nodes.values())
        return [(count, {"kind": kind, "state": state}) for (kind, state), count in counts.items()]
