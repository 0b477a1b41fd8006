"""The cluster as this broker sees it, for `strata cluster health`, probes and clients.

It joins the rows with the reports of storage nodes on their watch streams, so it sees an outage
even when no nameserver is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from strata.admin.v1 import admin_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.node_reports import NodeReports
from strata_metadata.cluster_health import SERVING, ClusterPicture, Facts
from strata_metadata.follower import MetadataFollower
from strata_metadata.health_watch import HealthWatch
from strata_runtime.clock import Clock
from strata_runtime.health import Health, HealthSource, Problem, Severity
from strata_runtime.metrics import Metrics

_MAX_PROBLEMS = 1_000


class ClusterWatch:
    """See the module docstring.

    Args:
        view: rows.
        leaders: the nodes that say they lead raft groups.
        reports: storage nodes' reports of themselves.
        clock: time.
        metrics: show the state of the cluster.
    """

    def __init__(
        self,
        view: MetadataView,
        leaders: LeaderMap,
        reports: NodeReports,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._leaders = leaders
        self._reports = reports
        self._clock = clock
        self._metadata_age_s: Callable[[], float] = float
        self._metadata_trouble: Callable[[], str] = str
        self._full_nameservers: Callable[[], frozenset[str]] = frozenset
        self._more: list[HealthSource] = []
        self._serves = False
        self._on_serving: Callable[[bool], None] = lambda serves: None
        self._watch = HealthWatch(
            "broker", self._facts, clock, metrics=metrics, on_look=self._looked
        )
        metrics.gauge("strata_broker_unreachable_raft_groups", self._unserved)

    def follow(self, metadata: MetadataFollower) -> None:
        """Learn the age of the rows, its reason, and the state of the nameservers."""
        self._metadata_age_s = metadata.age_s
        self._metadata_trouble = lambda: metadata.trouble
        self._full_nameservers = lambda: metadata.full_nameservers

    def add(self, source: HealthSource) -> None:
        """Add problems that another part of this process sees, for instance of its certificate."""
        self._more.append(source)

    def on_serving(self, listener: Callable[[bool], None]) -> None:
        """Call back when the broker begins or ceases to be able to serve."""
        self._on_serving = listener

    async def run(self) -> None:
        """Look until cancelled."""
        await self._watch.run()

    @property
    def picture(self) -> ClusterPicture:
        """The cluster as it was seen last, with the present age of the metadata."""
        return self._watch.aged(self._metadata_age_s())

    def check(self) -> ClusterPicture:
        """Look now."""
        self._watch.check()
        return self.picture

    def health(self) -> Health:
        """Return the broker's health: it serves while it knows a raft group that it can use."""
        picture = self._watch.picture
        return Health(self._view.ready and picture.serves, self._view.ready, self._problems())

    def why(self, raft_group: int) -> str:
        """Return the known problem of a raft group, for clients; empty: none."""
        group = self._watch.picture.groups.get(raft_group)
        if group is None or group.state == SERVING:
            return ""
        return f"raft group {raft_group} is {group.state}: {group.reason}"

    def shown(self, broker_node_id: str) -> admin_pb2.GetHealthResponse:
        """Return what `strata cluster health` shows."""
        self.check()
        picture, problems = self.picture, self._problems()
        worst = max((problem.severity for problem in problems), default=Severity.NOTE)
        return admin_pb2.GetHealthResponse(
            status=("healthy", "degraded", "down")[worst],
            problems=[
                admin_pb2.HealthProblem(
                    kind=each.kind,
                    name=each.name,
                    state=each.state,
                    severity=each.severity.name.lower(),
                    detail=each.detail,
                )
                for each in problems[:_MAX_PROBLEMS]
            ],
            raft_groups=picture.groups_by_state(),
            nodes=picture.nodes_by_state(),
            metadata_age_ms=int(picture.metadata_age_s * 1_000),
            looked_at_ms=self._clock.wall_ms(),
            broker_node_id=broker_node_id,
        )

    def _problems(self) -> tuple[Problem, ...]:
        more = [problem for source in self._more for problem in source().problems]
        if not self._view.ready:
            more.append(Problem("metadata", "", "UNKNOWN", Severity.DOWN, "nothing is known yet"))
        elif not self._watch.picture.groups:
            more.append(
                Problem("raft_group", "", "NONE", Severity.DOWN, "there is no raft group yet")
            )
        problems = [*self._watch.picture.problems, *more]
        return tuple(sorted(problems, key=lambda each: -each.severity))

    def _facts(self) -> tuple[Hashable, Callable[[], Facts]] | None:
        if not self._view.ready:
            return None
        age_s = self._metadata_age_s()
        version = (
            self._view.placement_version,
            self._leaders.version,
            self._reports.version,
            self._watch.is_stale(age_s),
            self._metadata_trouble(),
            self._full_nameservers(),
        )
        return version, lambda: Facts(
            self._view.nodes(),
            self._view.raft_groups(),
            self._leaders.claimed(),
            self._reports.told,
            frozenset(self._reports.unreached),
            age_s,
            self._metadata_trouble(),
            self._full_nameservers(),
        )

    def _looked(self, picture: ClusterPicture) -> None:
        serves = self._view.ready and picture.serves
        if serves != self._serves:
            self._serves = serves
            self._on_serving(serves)

    def _unserved(self) -> int:
        return sum(not group.serves for group in self._watch.picture.groups.values())
