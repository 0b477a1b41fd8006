"""Storage members in one process over real Angelia tcp, with a nameserver that does as told."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import AngeliaError
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row
from strata_storage.base.config import StorageConfig
from strata_storage.process import member as members
from strata_storage.process import member_setup
from strata_storage.process.app import NodeStores
from strata_storage.tiering.config import TierConfig
from strata_testing import until
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import batch_of, lease_of, pop_request, small_config
from tests.integration.storage.stub_nameserver import StubNameserver

Response = TypeVar("Response", bound=Message)

_STORAGE = "/strata.storage.v1.StorageService/"
# A pop whose answer comes too late is made again and gives something else: no busy machine needs
# as long.
_CALL_TIMEOUT_S = 10.0


class MemberUnderTest:
    """One member with a simulated disk, so that it can lose power; or with real files."""

    def __init__(
        self, node_id: str, folder: Path, stub: StubNameserver, seed: int, *, real: bool
    ) -> None:
        self.node_id = node_id
        self.fatal: list[tuple[str, BaseException]] = []
        self.disk = SimulatedDisk(seed)
        self.store = MemoryStore()
        self.real = real
        self.endpoint = ""
        # 0: any free one.
        self.port = 0
        self.tier: TierConfig | None = None
        self._folder = folder
        self._stub = stub
        self._boots = itertools.count(seed * 1_000 + 1)
        self.member: members.StorageMember | None = None

    @property
    def node(self):  # type: ignore[no-untyped-def]  # noqa: ANN201 - StorageNode
        assert self.member is not None
        return self.member.app.node

    def _failed(self, name: str, failure: BaseException) -> None:
        self.fatal.append((name, failure))

    async def start(self, config: StorageConfig) -> None:
        server = TcpServer("127.0.0.1", self.port)
        self.member = members.StorageMember(
            config,
            member_setup.MemberIdentity(self.node_id, next(self._boots)),
            self._folder,
            network=member_setup.MemberNetwork([server], [self._stub.endpoint], TcpChannel),
            runtime=Runtime(SystemClock(), random.random, Metrics.disabled(), self._failed),
            options=member_setup.MemberOptions(),
            stores=member_setup.MemberStores(
                NodeStores() if self.real else NodeStores(self.disk, self.store)
            ),
            setup=member_setup.MemberSetup(self.tier),
        )
        await self.member.start()
        self.endpoint = self.member.app.endpoint

    async def stop(self) -> None:
        member, self.member = self.member, None
        if member is not None:
            await member.stop(1.0)

    async def lose_power(self) -> None:
        """Stop at once; only what was synced at this moment is left for the next start.

        Nothing comes in or goes out from here on, so nobody is told of anything synced later.
        """
        assert self.member is not None
        peers = self.member.app._peers
        assert peers is not None
        peers.peering.servicer.detach()
        setattr(peers.peering.transport, "send", lambda *_: False)  # noqa: B010
        disk, store = self.disk.snapshot(1), self.store.after_crash()
        disk.power_loss()
        self.disk, self.store = disk, store
        member, self.member = self.member, None
        member._options = member_setup.MemberOptions(hand_over_ms=0)
        await member.stop(0.0)


class ClusterUnderTest:
    """Members, their nameserver, and a client that finds leaders."""

    def __init__(
        self,
        folder: Path,
        *,
        config: StorageConfig | None = None,
        real: bool = False,
        tier: TierConfig | None = None,
    ) -> None:
        self.tier = tier
        self.stub = StubNameserver()
        self.members: dict[str, MemberUnderTest] = {}
        self.config = config or small_config()
        self._folder = folder
        self._real = real
        self._channels: dict[str, TcpChannel] = {}
        self._leaders: dict[int, str] = {}
        self._sequences = itertools.count(1)

    async def __aenter__(self) -> ClusterUnderTest:
        await self.stub.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.member is not None:
                # Shown with a failed test.
                print(member.node.status())
        for channel in self._channels.values():
            await channel.close()
        await asyncio.gather(*(member.stop() for member in self.members.values()))
        await self.stub.stop()
        fatal = [each for member in self.members.values() for each in member.fatal]
        assert not fatal, fatal

    async def add(self, count: int) -> list[str]:
        """Start new members."""
        first = len(self.members) + 1
        names = [f"storage-{number}" for number in range(first, first + count)]
        for number, name in enumerate(names, first):
            folder = self._folder / name
            folder.mkdir()
            self.members[name] = MemberUnderTest(name, folder, self.stub, number, real=self._real)
            await self.start(name)
        return names

    async def start(self, node_id: str) -> None:
        self.members[node_id].tier = self.tier
        await self.members[node_id].start(self.config)

    # Client -------------------------------------------------------------------------------------

    def leader_of(self, raft_group: int) -> str | None:
        """Return the node that leads and is ready."""
        for node_id, member in self.members.items():
            if member.member is None or member.member._running is None:
                continue
            engine = member.node._engines.get(raft_group)
            if engine is not None and engine.leader is not None and engine.leader.ready:
                return node_id
        return None

    async def until_led(self, raft_group: int) -> str:
        await until(lambda: self.leader_of(raft_group))
        leader = self.leader_of(raft_group)
        assert leader is not None
        return leader

    async def transfer(self, raft_group: int) -> str:
        """Hand the leadership to another node; return it."""
        before = await self.until_led(raft_group)
        request = pb.TransferLeadershipRequest(raft_group=raft_group)
        await self.call(raft_group, "TransferLeadership", request, pb.TransferLeadershipResponse)
        await until(lambda: self.leader_of(raft_group) not in (None, before))
        return await self.until_led(raft_group)

    async def call_at(
        self, node_id: str, rpc: str, request: Message, response_type: type[Response]
    ) -> Response:
        """Call one node, whether it leads or not.

        Raises:
            AngeliaError: it does not answer.
        """
        return await self._channel(node_id).call(
            _STORAGE + rpc, request, response_type, timeout_s=_CALL_TIMEOUT_S
        )

    async def call(
        self, raft_group: int, rpc: str, request: Message, response_type: type[Response]
    ) -> Response:
        """Call the leader, wherever it is, until it does not refuse for being none."""
        async with asyncio.timeout(60):
            while True:
                node_id = self.leader_of(raft_group)
                if node_id is not None:
                    try:
                        response = await self.call_at(node_id, rpc, request, response_type)
                    except AngeliaError:
                        pass
                    else:
                        if not _is_transient(response):
                            return response
                await asyncio.sleep(0.02)

    def _channel(self, node_id: str) -> TcpChannel:
        endpoint = self.members[node_id].endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = TcpChannel(endpoint)
        return self._channels[endpoint]

    async def append(
        self, raft_group: int, bodies: list[bytes], *, sequence: int | None = None, **part: object
    ) -> pb.GroupResult:
        """Append one part, repeated until it is answered."""
        number = sequence if sequence is not None else next(self._sequences)
        data = batch_of(bodies, **part)  # type: ignore[arg-type]
        request = pb.AppendRequest(
            broker_boot_id=1,
            batches=[pb.GroupBatch(raft_group=raft_group, sequence=number, batch=data)],
        )
        response = await self.call(raft_group, "Append", request, pb.AppendResponse)
        return response.results[0]

    async def pop(self, raft_group: int, *, queue: int = -1, **fields: object) -> pb.PopResponse:
        request = pop_request(**fields)
        request.raft_group, request.queue = raft_group, queue
        response = await self.call(raft_group, "Pop", request, pb.PopResponse)
        return response

    async def ack(self, raft_group: int, messages: list[pb.LeasedMessage]) -> list[int]:
        leases = [lease_of(message) for message in messages]
        request = pb.AckRequest(groups=[pb.GroupLeases(raft_group=raft_group, leases=leases)])
        response = await self.call(raft_group, "Ack", request, pb.AckResponse)
        return list(response.groups[0].outcomes)

    async def fetch(
        self, raft_group: int, queue: int, offset: int = 0, topic_id: int = 7
    ) -> pb.FetchResponse:
        request = pb.FetchRequest(
            raft_group=raft_group,
            topic_id=topic_id,
            queue=queue,
            offset=offset,
            max_messages=1_000,
        )
        response = await self.call(raft_group, "Fetch", request, pb.FetchResponse)
        return response

    # Looking inside -----------------------------------------------------------------------------

    def rows(self, node_id: str, raft_group: int) -> list[Row]:
        return list(self.members[node_id].node.engine(raft_group).machine.rows.all())

    def applied(self, raft_group: int) -> dict[str, int]:
        """Return node id -> applied index where the raft group is hosted."""
        return {
            node_id: member.node._engines[raft_group].machine.applied_index()
            for node_id, member in self.members.items()
            if member.member is not None and raft_group in member.node._engines
        }

    async def until_quiet(self, raft_group: int) -> None:
        """Wait until the wanted replicas are there, no other, and have applied the same."""
        row = self.stub.groups[raft_group]
        running = {name for name, member in self.members.items() if member.member is not None}
        wanted = {replica.node_id for replica in row.replicas} & running
        await until(lambda: set(self.applied(raft_group)) == wanted)
        for _ in range(2):
            await until(lambda: len(set(self.applied(raft_group).values())) == 1)
            await asyncio.sleep(0.05)

    async def check_rows_equal(self, raft_group: int) -> None:
        """All replicas have the same rows, byte for byte."""
        await self.until_quiet(raft_group)
        hosts = list(self.applied(raft_group))
        first = self.rows(hosts[0], raft_group)
        assert first
        for node_id in hosts[1:]:
            assert self.rows(node_id, raft_group) == first, f"{hosts[0]} and {node_id} differ"


def _is_transient(response: Message) -> bool:
    """Whether the call should be made again, as a broker does: another leader, or later."""
    transient = (
        pb.OUTCOME_NOT_LEADER,
        pb.OUTCOME_NOT_READY,
        pb.OUTCOME_OVERLOADED,
        pb.OUTCOME_TIMEOUT,
    )
    if isinstance(response, pb.AppendResponse):
        return response.results[0].refusal.outcome in transient
    if isinstance(response, pb.AckResponse):
        return response.groups[0].refusal.outcome in transient
    return response.refusal.outcome in transient  # type: ignore[attr-defined]


async def cluster_of(
    folder: Path,
    count: int,
    groups: int = 1,
    *,
    config: StorageConfig | None = None,
    real: bool = False,
    tier: TierConfig | None = None,
) -> AsyncGenerator[ClusterUnderTest, None]:
    """Yield a cluster with raft groups on all of its members, led and ready."""
    async with ClusterUnderTest(folder, config=config, real=real, tier=tier) as cluster:
        names = await cluster.add(count)
        for number in range(groups):
            slots = [(0, 4096)] if groups == 1 else [(s, 1) for s in range(number, 4096, groups)]
            cluster.stub.make_group(number + 1, names, slots)
        for number in range(groups):
            await cluster.until_led(number + 1)
        yield cluster
