"""Reports live clients to every storage node, so that it keeps their auto-renewed leases.

A report also names the topics of connected producers, so that their transaction checks come here.

Rule 25: the broker sends the changes every few seconds, everything at first and on request, and
goodbyes after a moment, together with others that come in it. A node that a report did not reach
gets everything next time. Invariant: only a client that said goodbye is reported as gone. A silent
client just leaves the list, because another broker may still hear it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.config import SessionSection
from strata_broker.clients.producers import Producers
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.storage_client import SERVICE
from strata_runtime.timeouts import Timeout

_REPORT_CLIENTS = SERVICE + "ReportClients"


# Producers that come together, and clients that end together, are reported together; storage nodes
# look for leases to release less often than that.
_PAUSE_S = 0.1

_NOBODY: frozenset[int] = frozenset()


class _Told(NamedTuple):
    """The state that a node confirmed: live holders, topics with a producer, other producers."""

    live: AbstractSet[int]
    topic_ids: tuple[int, ...]
    has_others: bool


class LivenessReporter:
    """See the module docstring."""

    def __init__(
        self,
        boot_id: int,
        view: MetadataView,
        channels: NodeChannels,
        *,
        sessions: Sessions,
        producers: Producers,
        config: SessionSection,
    ) -> None:
        self._boot_id = boot_id
        self._view = view
        self._channels = channels
        self._sessions = sessions
        self._producers = producers
        self._period_s = config.report_interval_ms / 1000
        self._timeout_s = config.report_timeout_ms / 1000
        self._wake = asyncio.Event()
        # An absent node needs a full report.
        self._told: dict[str, _Told] = {}
        # node -> goodbyes it has not confirmed
        self._goodbyes: dict[str, set[int]] = {}
        self._wakes_soon = False
        sessions.on_goodbye(self._report_soon)
        producers.on_topics(self._report_soon)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report()
            try:
                async with Timeout(self._period_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Tell every storage node that this broker stops: its clients are at other brokers now.

        Those that said goodbye to it a moment ago are at none.
        """
        goodbyes, live = self._sessions.take_goodbyes(), self._sessions.live_holders()
        async with asyncio.TaskGroup() as calls:
            for node in self._view.nodes(meta_pb2.NODE_KIND_STORAGE):
                goodbye = storage_pb2.ReportClientsRequest(
                    broker_boot_id=self._boot_id,
                    full=True,
                    gone=(goodbyes | self._goodbyes.get(node.node_id, set())) - live,
                    leaving=True,
                )
                calls.create_task(self._tell(node.node_id, goodbye))

    async def report(self) -> None:
        """Tell every storage node once."""
        self._wake.clear()
        producers = self._producers
        now = _Told(self._sessions.live_holders(), producers.topic_ids(), producers.has_others)
        goodbyes = self._sessions.take_goodbyes()
        nodes = [node.node_id for node in self._view.nodes(meta_pb2.NODE_KIND_STORAGE)]
        self._told = {node: told for node, told in self._told.items() if node in nodes}
        self._goodbyes = {
            node: (self._goodbyes.get(node, set()) | goodbyes) - now.live for node in nodes
        }
        # As many calls as there are storage nodes; a silent one must not delay the others.
        async with asyncio.TaskGroup() as calls:
            for node in nodes:
                calls.create_task(self._report_to(node, now))

    def _report_soon(self) -> None:
        if not self._wakes_soon:
            self._wakes_soon = True
            asyncio.get_running_loop().call_later(_PAUSE_S, self._wake_up)

    def _wake_up(self) -> None:
        self._wakes_soon = False
        self._wake.set()

    async def _report_to(self, node: str, now: _Told) -> None:
        told = self._told.pop(node, None)
        goodbyes = self._goodbyes[node]
        live = now.live
        full = told is None
        known = _NOBODY if told is None else told.live
        request = storage_pb2.ReportClientsRequest(
            broker_boot_id=self._boot_id,
            full=full,
            live=live - known,
            gone=goodbyes,
            silent=known - live - goodbyes,
        )
        if told is None or told[1:] != now[1:]:
            request.producer_topics_set = True
            request.producers_of_unknown_topics = now.has_others
            request.producer_topic_ids.extend(now.topic_ids)
        response = await self._tell(node, request)
        if response is None:
            return
        if not response.want_full:
            self._told[node] = now
            self._goodbyes[node] = set()
        elif not full:
            await self._report_to(node, now)

    async def _tell(
        self, node: str, request: storage_pb2.ReportClientsRequest
    ) -> storage_pb2.ReportClientsResponse | None:
        """Make one report; None: it was not answered."""
        try:
            return await self._channels.to(node).call(
                _REPORT_CLIENTS,
                request,
                storage_pb2.ReportClientsResponse,
                timeout_s=self._timeout_s,
            )
        except AngeliaError:
            return None
