"""Three storage nodes over one replicated state: whoever leads serves it, the others refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, UNAVAILABLE, UNKNOWN_METHOD, AngeliaError
from strata_testing.broker.fake_meta import RAFT_GROUPS
from strata_testing.broker.fake_storage import FakeStorage

NODES = ("storage-a", "storage-b", "storage-c")


class FakeNode:
    """See `strata_angelia.ports.Channel`: the way to one storage node."""

    def __init__(self, cluster: FakeCluster, node_id: str) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.dead = False
        # Takes calls and never answers, as a stopped process does.
        self.paused = False
        # Carries pops out, and the answers are lost.
        self.loses_pops = False
        # Whether followers name the leader in their refusals.
        self.asked: list[str] = []
        self._changed = asyncio.Event()
        self._died = asyncio.Event()

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        rpc = method.rpartition("/")[2]
        self.asked.append(rpc)
        self._check_alive()
        if self.paused:
            died = asyncio.ensure_future(self._died.wait())
            await asyncio.wait((died,), timeout=timeout_s)
            died.cancel()
            self._check_alive()
            raise AngeliaError(DEADLINE_EXCEEDED, self.node_id)
        if rpc == "GetStatus":
            response = self._status()
        elif rpc in ("ReportClients", "ReportChecks", "EndPops"):
            response = await self._cluster.state.call(
                method, request, response_type, timeout_s=timeout_s
            )
        elif rpc in ("Append", "Ack"):
            response = await self._call_parts(method, request, response_type, timeout_s)
        elif self._leads(request.raft_group):  # type: ignore[attr-defined]
            response = await self._call_leader(method, request, response_type, timeout_s)
        else:
            response = response_type(refusal=self._refusal(request.raft_group))  # type: ignore[attr-defined]
        self._check_alive()
        if self.loses_pops and rpc == "Pop":
            raise AngeliaError(UNAVAILABLE, f"an answer of {self.node_id} was lost")
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        if not method.endswith("/Watch"):
            raise AngeliaError(UNKNOWN_METHOD, method)
        assert isinstance(request, storage_pb2.WatchRequest)
        with self._cluster.state.telling(request) as told:
            while True:
                self._check_alive()
                if not self.paused:
                    if self._changed.is_set() or told.empty():
                        self._changed.clear()
                        led = self._cluster.led_by(self.node_id)
                        yield storage_pb2.WatchResponse(led_groups=led)
                    while not told.empty():
                        yield told.get_nowait()
                await self._changed_or(told)

    async def _changed_or(self, told: asyncio.Queue[storage_pb2.WatchResponse]) -> None:
        """Wait until something changed, or is to be told."""
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(self._changed.wait())]
        if not self.paused:
            waits.append(asyncio.ensure_future(_look_at(told)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def close(self) -> None:
        """See `strata_angelia.ports.Channel`."""

    def changed(self) -> None:
        """Tell the watchers, unless it cannot."""
        if not self.paused:
            self._changed.set()

    def die(self) -> None:
        """Lose every connection and refuse new ones."""
        self.dead = True
        self._died.set()
        self._changed.set()

    async def _call_leader(
        self, method: str, request: Message, response_type: type[Any], timeout_s: float | None
    ) -> Any:
        """Make a call that waits; it is lost when the node dies meanwhile."""
        call = asyncio.ensure_future(
            self._cluster.state.call(method, request, response_type, timeout_s=timeout_s)
        )
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait((call, died), return_when=asyncio.FIRST_COMPLETED)
            self._check_alive()
            return await call
        finally:
            call.cancel()
            died.cancel()

    async def _call_parts(
        self, method: str, request: Any, response_type: type[Any], timeout_s: float | None
    ) -> Any:
        """Pass on what the node leads and refuse the rest, part by part."""
        append = isinstance(request, storage_pb2.AppendRequest)
        parts = request.batches if append else request.groups
        led = type(request)()
        led.CopyFrom(request)
        mine = led.batches if append else led.groups
        del mine[:]
        mine.extend(part for part in parts if self._leads(part.raft_group))
        served = response_type()
        if mine:
            served = await self._call_leader(method, led, response_type, timeout_s)
        answers = {one.raft_group: one for one in (served.results if append else served.groups)}
        response = response_type()
        results = response.results if append else response.groups
        for part in parts:
            if part.raft_group in answers:
                results.append(answers[part.raft_group])
            else:
                results.add(raft_group=part.raft_group, refusal=self._refusal(part.raft_group))
        return response

    def _status(self) -> storage_pb2.GetStatusResponse:
        status = storage_pb2.GetStatusResponse(node_id=self.node_id)
        number = NODES.index(self.node_id)
        for raft_group in RAFT_GROUPS:
            replica = status.replicas.add(
                raft_group=raft_group,
                replica_id=10 * number + raft_group,
                state=storage_pb2.REPLICA_STATE_SERVING,
                term=5,
                last_index=20,
                leader=self._leads(raft_group),
            )
            if replica.leader:
                replica.progress.add(replica_id=10 + raft_group, match_index=18)
        return status

    def _leads(self, raft_group: int) -> bool:
        return self._cluster.leaders.get(raft_group) == self.node_id

    def _refusal(self, raft_group: int) -> storage_pb2.Refusal:
        return storage_pb2.Refusal(
            outcome=storage_pb2.OUTCOME_NOT_LEADER,
            leader_node_id=self._cluster.hints.get(raft_group, ""),
        )

    def _check_alive(self) -> None:
        if self.dead:
            raise AngeliaError(UNAVAILABLE, f"{self.node_id} is gone")


async def _look_at(told: asyncio.Queue[storage_pb2.WatchResponse]) -> None:
    """Wait until there is something in a queue, and leave it there."""
    told.put_nowait(await told.get())


class FakeCluster:
    """The nodes, who leads what, and what followers believe."""

    def __init__(self, slots: list[int]) -> None:
        self.state = FakeStorage(slots)
        self.nodes = {node_id: FakeNode(self, node_id) for node_id in NODES}
        self.leaders: dict[int, str] = dict.fromkeys(RAFT_GROUPS, NODES[0])
        self.hints = dict(self.leaders)

    def channel(self, endpoints: Sequence[str]) -> FakeNode:
        """Return the way to a node by its endpoint."""
        return self.nodes[endpoints[0].removeprefix("inproc:")]

    def led_by(self, node_id: str) -> list[int]:
        """Return what a node leads."""
        return [group for group, leader in self.leaders.items() if leader == node_id]

    def elect(self, raft_group: int, node_id: str, *, known: bool = True) -> None:
        """Let a node lead; `known`: the others name it from now on."""
        self.leaders[raft_group] = node_id
        if known:
            self.hints[raft_group] = node_id
        for node in self.nodes.values():
            node.changed()

    def depose(self, raft_group: int) -> None:
        """Let nobody lead; followers still name the last leader."""
        self.leaders.pop(raft_group, None)
        for node in self.nodes.values():
            node.changed()
