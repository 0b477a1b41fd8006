"""The storage tier as one broker sees it: its parts, put together in one place.

channels --> leaders (by raft group) <-- leader watch (reports of nodes)
   |             |
   +--> client (single calls), appender (sends, batched), acker (acks, batched),
        reads (bytes of messages, from any replica)
"""

from __future__ import annotations

from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.ack_lanes import Acker
from strata_broker.storage_client.append_lanes import Appender
from strata_broker.storage_client.channels import ChannelFactory, NodeChannels
from strata_broker.storage_client.cluster_watch import ClusterWatch
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_broker.storage_client.leader_watch import LeaderWatch, NodeNews, OnChecks
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.lite_directory import LiteDirectory
from strata_broker.storage_client.node_reports import NodeReports
from strata_broker.storage_client.pop_ends import PopEnder
from strata_broker.storage_client.quiet_places import QuietPlaces
from strata_broker.storage_client.replica_reads import ReadSpread, ReplicaReads
from strata_broker.storage_client.storage_client import StorageClient
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks


class StorageTier:
    """See the module docstring.

    Args:
        boot_id: of the broker; names its append batches.
        view: knows the raft groups and nodes.
        factory: makes a channel to a storage node.
        config: times and limits.
        runtime: clock, chance, metrics, tracer.
        tasks: run the background loops.
        requests: notes failures of single requests.
    """

    def __init__(
        self,
        boot_id: int,
        view: MetadataView,
        factory: ChannelFactory,
        *,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        requests: RequestTasks,
    ) -> None:
        section = config.storage_client
        clock, random, metrics = runtime.clock, runtime.random, runtime.metrics
        self._tasks = tasks
        self.channels = NodeChannels(view, factory)
        self.leaders = LeaderMap(view, section, clock)
        self.quiet = QuietPlaces(self.leaders, section, clock=clock, metrics=metrics)
        reports = NodeReports()
        self._watch = LeaderWatch(
            boot_id,
            view,
            self.channels,
            news=NodeNews(self.leaders, reports, self.quiet),
            config=section,
            runtime=runtime,
            tasks=tasks,
            requests=requests,
        )
        self.cluster = ClusterWatch(view, self.leaders, reports, clock=clock, metrics=metrics)
        self.leaders.why = self.cluster.why
        self.client = StorageClient(
            self.leaders, self.channels, section, clock=clock, random=random, metrics=metrics
        )
        self.lite = LiteDirectory(view, self.client, config.lite, metrics=metrics)
        self.pop_ender = PopEnder(boot_id, self.channels, section, tasks=tasks)
        self.reads = ReplicaReads(
            ReadSpread(view, self.leaders, section, clock=clock, metrics=metrics),
            self.client,
            self.channels,
            config=section,
            metrics=metrics,
        )
        self.acker = Acker(
            self.leaders,
            self.channels,
            section,
            max_waiting=config.ack.max_waiting,
            runtime=runtime,
            tasks=tasks,
            requests=requests,
        )
        self.appender = Appender(
            boot_id,
            self.leaders,
            self.channels,
            config=config,
            runtime=runtime,
            tasks=tasks,
            requests=requests,
        )
        for lanes in (self.pop_ender, self.acker, self.appender):
            self._watch.on_gone(lanes.forget)
        self.earlier = EarlierSends(
            view, self.client, config.send, clock=self.appender.group_clock, metrics=metrics
        )

    def on_checks(self, listener: OnChecks) -> None:
        """Call back with the transaction checks that storage nodes send here."""
        self._watch.on_checks(listener)

    def start(self) -> None:
        """Start to watch the leaders."""
        self._tasks.spawn("watch leaders", self._watch.run())
        self._tasks.spawn("watch cluster", self.cluster.run())

    async def close(self) -> None:
        """Close all channels; calls under way fail."""
        await self.channels.close()
