"""A whole node in this process (nameserver, storage, broker, gRPC), whose broker meets faults.

Clients' calls are real: they go through grpcio to the port. The faults can hold back, refuse or
lose what the broker hears of storage and of the nameserver, one RPC at a time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from apache.rocketmq.v2 import service_pb2_grpc
from strata.admin.v1 import admin_pb2_grpc
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, AngeliaError, Channel
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import BrokerNetwork
from strata_cli.processes.access_control import with_access_control
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.standalone import NAMESERVER, Standalone
from strata_cli.processes.standalone_config import StandaloneConfig
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_testing import until
from tests.integration.broker.plain_edge import plain_edge

SMALL: dict[str, dict[str, Any]] = {
    "node": {"grpc_port": 0},
    "storage": {"log_segment_bytes": 8 * 1024 * 1024, "ballast_bytes": 0},
}

Refusing: TypeAlias = "storage_pb2.Outcome.ValueType | meta_pb2.MetaOutcome.ValueType"


class Faults:
    """Faults that the next calls of an RPC meet instead of their server."""

    def __init__(self) -> None:
        self._next: dict[str, deque[Refusing | AngeliaError]] = defaultdict(deque)
        self._gates: dict[str, asyncio.Event] = {}
        # RPC -> what changes its next answer.
        self._alterations: dict[str, Callable[[Any], object]] = {}
        self.waiting: dict[str, int] = defaultdict(int)

    def refuse(self, rpc: str, outcome: Refusing, *, times: int = 1) -> None:
        """Answer calls with a refusal."""
        self._next[rpc].extend([outcome] * times)

    def lose(self, rpc: str, failure: AngeliaError, *, times: int = 1) -> None:
        """Fail calls."""
        self._next[rpc].extend([failure] * times)

    def alter(self, rpc: str, change: Callable[[Any], object]) -> None:
        """Change what the server answers to the next call."""
        self._alterations[rpc] = change

    @asynccontextmanager
    async def hold(self, rpc: str) -> AsyncIterator[None]:
        """Answer no call while the block runs; those that waited go on after it."""
        gate = self._gates[rpc] = asyncio.Event()
        try:
            yield
        finally:
            del self._gates[rpc]
            gate.set()

    async def until_held(self, rpc: str, calls: int = 1) -> None:
        """Wait until so many calls are held."""
        await until(lambda: self.waiting[rpc] >= calls)

    def altered(self, rpc: str, response: Any) -> Any:
        """Return an answer as the caller should see it."""
        change = self._alterations.pop(rpc, None)
        if change is not None:
            change(response)
        return response

    def clear(self) -> None:
        """Forget what no call met."""
        self._next.clear()

    async def meet(
        self, rpc: str, request: Message, response_type: type[Any], timeout_s: float | None
    ) -> Message | None:
        """Return the answer of a call that should not reach its server; None: it should.

        Raises:
            AngeliaError: it is lost.
        """
        gate = self._gates.get(rpc)
        if gate is not None:
            await self._wait(rpc, gate, timeout_s)
        fault = self._next[rpc].popleft() if self._next[rpc] else None
        if isinstance(fault, AngeliaError):
            raise fault
        return None if fault is None else _refusal(request, response_type, fault)

    async def _wait(self, rpc: str, gate: asyncio.Event, timeout_s: float | None) -> None:
        self.waiting[rpc] += 1
        try:
            async with asyncio.timeout(timeout_s):
                await gate.wait()
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, f"{rpc} is held") from None
        finally:
            self.waiting[rpc] -= 1


def _refusal(request: Message, response_type: type[Any], outcome: Any) -> Message:
    """Return a response that refuses all of a request."""
    refusal = storage_pb2.Refusal(outcome=outcome, reason="as the test wants it")
    match request:
        case storage_pb2.AppendRequest():
            response = storage_pb2.AppendResponse()
            for batch in request.batches:
                response.results.add(raft_group=batch.raft_group, refusal=refusal)
            return response
        case storage_pb2.AckRequest():
            acks = storage_pb2.AckResponse()
            for group in request.groups:
                acks.groups.add(raft_group=group.raft_group, refusal=refusal)
            return acks
    if "status" in response_type.DESCRIPTOR.fields_by_name:
        status = meta_pb2.MetaStatus(outcome=outcome, reason="as the test wants it")
        refused: Message = response_type(status=status)
    else:
        refused = response_type(refusal=refusal)
    return refused


class FaultyChannel:
    """See `strata_angelia.ports.Channel`; calls meet the faults first."""

    def __init__(self, channel: Channel, faults: Faults) -> None:
        self._channel = channel
        self._faults = faults

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        rpc = method.rpartition("/")[2]
        answer = await self._faults.meet(rpc, request, response_type, timeout_s)
        if answer is not None:
            return answer
        response = await self._channel.call(method, request, response_type, timeout_s=timeout_s)
        return self._faults.altered(rpc, response)

    def stream(self, method: str, request: Message, response_type: type[Any]) -> AsyncIterator[Any]:
        return self._channel.stream(method, request, response_type)

    async def close(self) -> None:
        await self._channel.close()


class FaultyNode(Standalone):
    """A standalone node whose broker's calls meet `faults`."""

    def __init__(self, folder: Path, sections: Mapping[str, dict[str, Any]], host: str) -> None:
        self._host = host
        names = {*SMALL, *sections}
        merged = {name: SMALL.get(name, {}) | sections.get(name, {}) for name in names}
        self.settings = with_access_control(StandaloneConfig.model_validate(merged))
        self.faults = Faults()
        self.fatal: list[tuple[str, BaseException]] = []
        self.data_folder = DataFolder.open(folder, FolderRole.STANDALONE)
        self.metrics = Metrics()
        super().__init__(
            self.settings,
            self.data_folder,
            clock=SystemClock(),
            metrics=self.metrics,
            on_fatal=lambda name, failure: self.fatal.append((name, failure)),
        )

    def _broker(self) -> BrokerApp:
        network, faults = self._network, self.faults
        self.broker = BrokerApp(
            BrokerIdentity(self._folder.identity.broker_node_id, self._boot_id, self._host),
            self._config,
            plain_edge(self._config, self._host, self._metrics),
            network=BrokerNetwork(
                [f"inproc:{NAMESERVER}"],
                lambda endpoint: FaultyChannel(network.channel(endpoint), faults),
                lambda endpoints: FaultyChannel(network.channel(endpoints[0]), faults),
            ),
            runtime=Runtime(self._clock, lambda: 0.5, self._metrics, self._on_fatal),
        )
        return self.broker


class Port:
    """A client's connection to a node."""

    def __init__(self, node: FaultyNode, channel: grpc.aio.Channel) -> None:
        self.node = node
        self.channel = channel
        self.messaging = service_pb2_grpc.MessagingServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)


@asynccontextmanager
async def faulty_node(
    folder: Path, sections: Mapping[str, dict[str, Any]], *, host: str = "127.0.0.1"
) -> AsyncIterator[Port]:
    """Start a node, connect to it, stop it; nothing in it may have failed."""
    node = FaultyNode(folder, sections, host)
    await node.start()
    try:
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(node.endpoint, options) as channel:
            yield Port(node, channel)
    finally:
        await node.stop(1.0)
        node.metrics.close()
        node.data_folder.close()
    assert node.fatal == []
