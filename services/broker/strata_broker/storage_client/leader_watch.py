"""One watch stream to every storage node: what it leads, transaction checks, and new messages.

After a failover the new leader reports itself: no call has to be refused first, and all requests
that wait for the raft group are sent there at once. A broken stream is the first sign that a node
has died. Invariant: each node in the metadata has one stream, or a pause before the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, UNAVAILABLE, AngeliaError
from strata_broker.base.failures import passed_over
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.node_reports import NodeReports
from strata_broker.storage_client.quiet_places import QuietPlaces
from strata_broker.storage_client.storage_client import SERVICE
from strata_runtime.backoff import Backoff
from strata_runtime.limits import Limit
from strata_runtime.logs import get_logger
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks

_WATCH = SERVICE + "Watch"
_SILENCE = frozenset((UNAVAILABLE, DEADLINE_EXCEEDED))

OnChecks = Callable[[str, Iterable[storage_pb2.TransactionCheck]], None]
"""Told of a node and of its half messages that a producer is to be asked about."""

OnGone = Callable[[str], None]
"""Told of a storage node that is no member any more."""


class NodeNews(NamedTuple):
    """Receiver of the news of nodes.

    Attributes:
        leaders: gets the raft groups that nodes say they lead.
        reports: gets nodes' reports of themselves.
        quiet: gets the places that nodes tell of.
    """

    leaders: LeaderMap
    reports: NodeReports
    quiet: QuietPlaces


class LeaderWatch:
    """See the module docstring.

    Args:
        boot_id: of this broker.
        view: knows the storage nodes.
        channels: to them.
        news: takes in what they say.
        config: pauses and the limit on streams.
        runtime: spreads the pauses, counts open streams.
        tasks: run the streams.
        requests: told of reports that cannot be taken in.
    """

    def __init__(
        self,
        boot_id: int,
        view: MetadataView,
        channels: NodeChannels,
        *,
        news: NodeNews,
        config: StorageClientSection,
        runtime: Runtime,
        tasks: Tasks,
        requests: RequestTasks,
    ) -> None:
        self._boot_id = boot_id
        self._view = view
        self._channels = channels
        self._leaders, self._reports, self._quiet = news
        self._config = config
        self._random = runtime.random
        self._tasks = tasks
        self._requests = requests
        self._streams = Limit(
            "leader watches", config.max_watches, "streams", metrics=runtime.metrics
        )
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._on_checks: OnChecks = lambda *_: None
        self._on_gone: list[OnGone] = []
        self._changed = asyncio.Event()
        view.on_placement(self._changed.set)
        self._log = get_logger("broker")

    def on_checks(self, listener: OnChecks) -> None:
        """Call back with the transaction checks that nodes send here."""
        self._on_checks = listener

    def on_gone(self, listener: OnGone) -> None:
        """Call back with a node that left, once its channel takes no calls any more."""
        self._on_gone.append(listener)

    async def run(self) -> None:
        """Keep streams to the nodes of the metadata until cancelled."""
        while True:
            self._changed.clear()
            self._follow_nodes()
            await self._channels.close_replaced()
            await self._changed.wait()

    def _follow_nodes(self) -> None:
        nodes = {node.node_id for node in self._view.nodes(meta_pb2.NODE_KIND_STORAGE)}
        for node_id in sorted(nodes - self._watching.keys()):
            if not self._streams.try_take():
                # Leaders on other nodes are found by refusals.
                self._log.warning("too many storage nodes to watch", node_id=node_id)
                break
            watching = self._tasks.spawn(f"watch {node_id}", self._watch(node_id))
            self._watching[node_id] = watching
        for node_id in sorted(self._watching.keys() - nodes):
            self._watching.pop(node_id).cancel()
            self._streams.give_back()
            self._quiet.closed(node_id)
            self._leaders.forget(node_id)
            self._reports.forget(node_id)
            self._channels.forget(node_id)
            for gone in self._on_gone:
                gone(node_id)

    async def _watch(self, node_id: str) -> None:
        backoff = Backoff(
            self._config.first_retry_ms, self._config.max_watch_retry_ms, self._random
        )
        while True:
            try:
                await self._take_in(node_id, backoff)
            except AngeliaError as failure:
                silent = failure.code in _SILENCE
            else:
                silent = True
            self._quiet.closed(node_id)
            if silent:
                self._leaders.lost(node_id)
                self._reports.lost(node_id)
            await asyncio.sleep(backoff.next_s())

    async def _take_in(self, node_id: str, backoff: Backoff) -> None:
        """Forward a node's reports until its stream ends.

        Raises:
            AngeliaError: the stream broke.
        """
        number = self._quiet.next_stream()
        request = storage_pb2.WatchRequest(
            broker_boot_id=self._boot_id, stream=number, reports_checks=True
        )
        stream = self._channels.to(node_id).stream(_WATCH, request, storage_pb2.WatchResponse)
        async with aclosing(stream) as responses:  # type: ignore[type-var]
            async for response in responses:
                backoff.reset()
                self._quiet.opened(node_id, number)
                with passed_over(self._requests, "take in a report of a node"):
                    self._take(node_id, response)

    def _take(self, node_id: str, response: storage_pb2.WatchResponse) -> None:
        if response.checks:
            self._on_checks(node_id, response.checks)
        elif response.deliverable:
            self._quiet.told(response.deliverable)
        else:
            self._leaders.leads(node_id, response.led_groups)
            self._reports.heard(node_id, response.health)
