"""Queue and slot moves on a node that is alone: between its own raft groups.

The parts are those of a cluster's storage node (`member`); what differs is that nothing else here
follows the metadata, so this does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from strata_metadata import (
    ClusterView,
    MetadataClient,
    MetadataClientOptions,
    MetadataFollower,
    MetadataFollowerOptions,
)
from strata_metadata.channels import ChannelFactory, Channels
from strata_metadata.follower import MetadataSources
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks
from strata_storage.base.directory import Directory
from strata_storage.cluster.queue_moves import LedEngines, QueueMoveOptions, QueueMoves
from strata_storage.cluster.slot_moves import SlotMoveOptions, SlotMoves
from strata_storage.leading.pending.forwarding import Forwarding

_MAX_CHANNELS = 4
_MAX_TASKS = 100


class LocalMoves:
    """See the module docstring.

    Args:
        nameserver: endpoint of the one in the same process.
        open_channel: makes a channel to it, and to the storage node itself.
        clock: time.
        metrics: moves.
        on_fatal: told when the process must end.
        chance: spreads pauses; None: seeded by the system.

    Attributes:
        view: of the metadata.
        forwarder: brings messages that waited where their queue is now.
    """

    def __init__(
        self,
        nameserver: str,
        open_channel: ChannelFactory,
        *,
        clock: Clock,
        metrics: Metrics,
        on_fatal: OnFatal,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._nameserver = nameserver
        self._open_channel = open_channel
        self._clock = clock
        self._metrics = metrics
        self._chance = chance or Random().random  # noqa: S311 (spreads load, guards nothing)
        self._tasks = Tasks("local-moves", on_fatal, max_tasks=_MAX_TASKS)
        self._channels = Channels(open_channel, _MAX_CHANNELS)
        self._client: MetadataClient | None = None
        self.view = ClusterView()
        self._directory = Directory(self.view)
        self.forwarder = Forwarding(self.view, self._directory, self._channels)

    def start(self, node: LedEngines) -> None:
        """Follow the metadata and move what they say."""
        # The broker of the process shows how the metadata are followed.
        silent = Metrics.disabled()
        follower = MetadataFollower(
            MetadataSources([self._nameserver], self._open_channel),
            self.view,
            options=MetadataFollowerOptions(),
            clock=self._clock,
            random=self._chance,
            metrics=silent,
        )
        client = self._client = MetadataClient(
            [self._nameserver],
            self._open_channel,
            MetadataClientOptions(),
            random=self._chance,
            metrics=silent,
        )
        tasks, metrics = self._tasks, self._metrics
        moves = QueueMoves(
            node,
            self.view,
            self._directory,
            channels=self._channels,
            client=client,
            tasks=tasks,
            options=QueueMoveOptions(),
            metrics=metrics,
        )
        slot_moves = SlotMoves(
            node, self.view, client, tasks=tasks, options=SlotMoveOptions(), metrics=metrics
        )
        tasks.spawn("follow", follower.run())
        tasks.spawn("moves", moves.run())
        tasks.spawn("slot-moves", slot_moves.run())

    async def stop(self) -> None:
        """Stop; every step that is under way is taken up again after the next start."""
        await self._tasks.stop()
        if self._client is not None:
            await self._client.close()
        await self._channels.close()
