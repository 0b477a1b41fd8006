"""Machines with a nameserver, a storage node or a broker: their process and its lasting state.

A host composes its service as the process of the same name does (`strata_cli`), with simulated
ports: network, disk, rows, clock, chance. Its identity is what a data folder would hold: it
survives everything but `empty`. A failed process is started again, as by a supervisor.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import AngeliaError, Channel
from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.identity import BrokerIdentity
from strata_broker.kv.plugin import KvBrokerPlugin
from strata_broker.storage_client.channels import BrokerNetwork
from strata_multiraft.replica import Replica
from strata_nameserver.membership.formation import FormationError
from strata_nameserver.membership.identity import NameserverIdentity
from strata_nameserver.process.app import (
    METADATA_RAFT_GROUP,
    NameserverApp,
    NameserverCluster,
    NameserverStores,
)
from strata_raft import Role
from strata_runtime.runtime import Runtime
from strata_seglog.errors import LogError
from strata_sim.chance import source
from strata_sim.edge import SimEdge, SimEdgeChannel
from strata_sim.machine import Machine
from strata_sim.network import SimNetwork
from strata_sim.options import (
    BROKER_PORT,
    NAMESERVER_PORT,
    STORAGE_PORT,
    ClusterOptions,
)
from strata_sim.stores import SimMetadataStore, SimStore
from strata_sim.tally import TallyMetrics
from strata_sim.trace import Trace
from strata_state.metadata import MetadataStoreError
from strata_state.ports import StateError
from strata_storage.kv.options import KvOptions
from strata_storage.kv.plugin import KvStoragePlugin
from strata_storage.process.app import NodeStores
from strata_storage.process.member import StorageMember
from strata_storage.process.member_setup import (
    MemberIdentity,
    MemberNetwork,
    MemberSetup,
    MemberStores,
)
from strata_storage.upkeep.damage import damaged_replicas
from strata_testing.simulated_disk import Keep, SimulatedDisk
from strata_tier.store import MemoryBucket

_NOWHERE = Path("/nowhere")
_START_ERRORS = (
    AngeliaError,
    BrokerStartError,
    FormationError,
    LogError,
    MetadataStoreError,
    OSError,
    StateError,
    TimeoutError,
)


class _App(Protocol):
    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class World:
    """Parts that all hosts share.

    Attributes:
        seed: of the run; every host draws from a source of its own.
        network: between them.
        trace: where events go.
        options: of the cluster.
        outside: context of the simulation itself, in which nothing belongs to a process.
        nameservers, storage_seeds: endpoints.
        tally: counts what all processes do.
        buckets: of the object store, whom no fault of a machine touches.
    """

    seed: int
    network: SimNetwork
    trace: Trace
    options: ClusterOptions
    outside: contextvars.Context
    nameservers: Sequence[str]
    storage_seeds: Sequence[str]
    tally: TallyMetrics = field(default_factory=TallyMetrics)
    buckets: dict[str, MemoryBucket] = field(default_factory=dict)


class Host:
    """One machine and what it runs.

    Args:
        world: what it shares with the others.
        name: of the machine.

    Attributes:
        machine: where the process runs.
        wanted: whether a supervisor starts the process again when it has died by itself.
        expects_failure: a fault is at work that may end the process.
        serving: whether the process's start has returned.
    """

    kind = ""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.machine = Machine(name, world.network.loop)
        self.chance = source(world.seed, name)
        self.wanted = False
        self.expects_failure = False
        self.serving = False
        self._app: _App | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether it has lost something for good, for which others do not make up yet."""
        return False

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.machine.name

    # For faults and drills ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        self.wanted = True
        self.world.trace.note(f"{self.name} starts")
        self.machine.start(self._live())

    def kill(self) -> None:
        """Kill the process (kill -9): what it wrote is there, synced or not."""
        if not self.machine.runs:
            return
        self.world.trace.note(f"{self.name} killed")
        self.wanted = False
        self._die()
        self._process_died()

    def lose_power(self) -> None:
        """End the process and lose what was not synced."""
        self.world.trace.note(f"{self.name} loses power")
        self.wanted = False
        if self.machine.runs:
            self._die()
            self._process_died()
        self._power_lost()

    async def stop(self, grace_s: float) -> None:
        """Stop the process as SIGTERM does and wait for its end."""
        if not self.machine.runs:
            return
        self.world.trace.note(f"{self.name} stops")
        self.wanted = False
        incarnation, app = self.machine.incarnation, self._app
        if app is not None and self.serving:
            self.serving = False
            stopping = self.machine.run(app.stop(grace_s))
            await asyncio.wait({stopping}, timeout=grace_s + 10)
            if self.machine.incarnation is incarnation and not stopping.done():
                self.world.trace.violation(f"{self.name} does not stop")
            elif stopping.done() and (failure := stopping.exception()) is not None:
                self.world.trace.violation(f"{self.name} fails to stop: {failure!r}")
        if self.machine.incarnation is incarnation and incarnation is not None:
            self._die()
            self._process_died()

    def _die(self) -> None:
        self.machine.kill()
        self.serving = False
        self._app = None

    # The process ----------------------------------------------------------------------------------

    async def _live(self) -> None:
        app = self._app = self._build()
        try:
            await app.start()
        except _START_ERRORS as failure:
            self._failed("start", failure)
            return
        self.serving = True
        self.world.trace.note(f"{self.name} serves")

    def _runtime(self) -> Runtime:
        return Runtime(
            self.machine.clock,
            self.chance.random,
            self.world.tally,
            self._failed,
            random_between=self.chance.randint,
            random_bytes=self.chance.randbytes,
        )

    def _failed(self, task: str, failure: BaseException) -> None:
        """The process cannot go on: it ends, and the supervisor starts it again."""
        text = f"{self.name} failed in {task}: {failure!r}"
        if self.expects_failure or self._may_fail(failure):
            self.world.trace.note(text)
        else:
            self.world.trace.violation(text)
        self._die()
        self._process_died()
        self.world.network.loop.call_later(
            self.world.options.restart_s, self._start_again, context=self.world.outside.copy()
        )

    def _start_again(self) -> None:
        if self.wanted and not self.machine.runs:
            self.start()

    def _channel(self, endpoint: str) -> Channel:
        return self.world.network.channel(self.machine, endpoint)

    def _may_fail(self, failure: BaseException) -> bool:
        """Whether a failure can happen without a mistake in the code."""
        return False

    def _build(self) -> _App:
        raise AssertionError("a kind of host builds its service")

    def _process_died(self) -> None:
        """Replace what a dead process leaves."""

    def _power_lost(self) -> None:
        """Replace what a power loss leaves."""


class NameserverHost(Host):
    """A nameserver."""

    kind = "nameserver"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.empty()

    def empty(self) -> None:
        """Forget everything, identity included: the next start is a new nameserver (rule 8)."""
        self.node_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self.replica_id = self.chance.getrandbits(62) | 1 << 62
        self.voters: frozenset[int] = frozenset()
        self.cluster_id = ""
        self.disk = SimulatedDisk(self.chance.getrandbits(32))
        self.rows = SimMetadataStore()

    @property
    def app(self) -> NameserverApp | None:
        """The running service."""
        assert self._app is None or isinstance(self._app, NameserverApp)
        return self._app

    @property
    def endpoint(self) -> str:
        """Where it serves."""
        return f"{self.name}:{NAMESERVER_PORT}"

    def replicas(self) -> dict[int, Replica]:
        """Return what its driver hosts, by raft group."""
        replica = self.app.replica if self.app is not None else None
        return {} if replica is None else {METADATA_RAFT_GROUP: replica}

    def _build(self) -> NameserverApp:
        world = self.world
        return NameserverApp(
            world.options.nameserver,
            NameserverIdentity(
                self.node_id,
                self.replica_id,
                self.voters,
                self.chance.getrandbits(64),
                self.cluster_id,
            ),
            _NOWHERE,
            server=world.network.server(self.machine, self.endpoint),
            runtime=self._runtime(),
            stores=NameserverStores(self.disk, self.rows),
            cluster=NameserverCluster(
                endpoint=self.endpoint,
                endpoints=world.nameservers,
                open_channel=self._channel,
                save_formation=self._form,
            ),
        )

    def _form(self, cluster_id: str, replica_ids: Sequence[int]) -> None:
        self.cluster_id, self.voters = cluster_id, frozenset(replica_ids)

    def _power_lost(self) -> None:
        self.disk.power_loss(Keep.ANY)
        self.rows = self.rows.after_power_loss(self.chance)


class StorageHost(Host):
    """A storage node.

    Attributes:
        may_be_damaged: a fault took more than what was not synced.
    """

    kind = "storage"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.empty()

    def empty(self) -> None:
        """Forget everything, identity included: the next start is a new storage node (rule 8)."""
        self.node_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self.disk = SimulatedDisk(
            self.chance.getrandbits(32), capacity_bytes=self.world.options.disk_bytes
        )
        self.may_be_damaged = False
        self.lose_rows()
        self.metadata_rows = SimMetadataStore()
        self.cluster = ClusterId()

    def lose_rows(self) -> None:
        """Forget the rows of raft groups; the log has what made them."""
        self.rows = SimStore()

    @property
    def app(self) -> StorageMember | None:
        """The running service."""
        assert self._app is None or isinstance(self._app, StorageMember)
        return self._app

    @property
    def endpoint(self) -> str:
        """Where it serves."""
        return f"{self.name}:{STORAGE_PORT}"

    def replicas(self) -> dict[int, Replica]:
        """Return what its driver hosts, by raft group."""
        if self.app is None or not self.serving:
            return {}
        return dict(self.app.app.node.replicas())

    @property
    def is_damaged(self) -> bool:
        """Whether a replica takes no part until another one is made in its place.

        Then the other voters are all that the raft group has: also when the damaged one was removed
        already, and while the new one is a learner.
        """
        replicas, all_voters = self.replicas(), self.world.options.nameserver.replication_factor
        return bool(damaged_replicas(replicas)) or any(
            replica.role is Role.LEADER and len(replica.configuration.voters) < all_voters
            for replica in replicas.values()
        )

    def _build(self) -> StorageMember:
        world = self.world
        return StorageMember(
            world.options.storage,
            MemberIdentity(self.node_id, self.chance.getrandbits(64), cluster=self.cluster),
            _NOWHERE,
            network=MemberNetwork(
                servers=[world.network.server(self.machine, self.endpoint)],
                advertised=[self.endpoint],
                nameservers=world.nameservers,
                open_channel=self._channel,
            ),
            runtime=self._runtime(),
            stores=MemberStores(NodeStores(self.disk, self.rows), self.metadata_rows),
            setup=MemberSetup(
                world.options.tier,
                [KvStoragePlugin(KvOptions.of(world.options.storage))],
                world.buckets,
            ),
        )

    def _process_died(self) -> None:
        self.rows = self.rows.after_death(self.chance)

    def _power_lost(self) -> None:
        self.disk.power_loss(Keep.ANY)
        self.metadata_rows = self.metadata_rows.after_power_loss(self.chance)


class BrokerHost(Host):
    """A broker: its node id is all that survives it."""

    kind = "broker"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.node_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self.cluster = ClusterId()

    @property
    def app(self) -> BrokerApp | None:
        """The running service."""
        assert self._app is None or isinstance(self._app, BrokerApp)
        return self._app

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"{self.name}:{BROKER_PORT}"

    def replicas(self) -> dict[int, Replica]:
        """A broker hosts nothing."""
        return {}

    def _build(self) -> BrokerApp:
        world = self.world
        broker = BrokerApp(
            BrokerIdentity(self.node_id, self.chance.getrandbits(64), self.name),
            world.options.broker,
            SimEdge(world.network, self.machine, BROKER_PORT),
            network=BrokerNetwork(
                world.nameservers,
                self._channel,
                lambda endpoints: self._channel(endpoints[0]),
                world.storage_seeds,
                lambda endpoints, headers: SimEdgeChannel(
                    world.network, self.name, endpoints[0], headers=headers
                ),
                self.cluster,
            ),
            runtime=self._runtime(),
            plugins=[KvBrokerPlugin()],
        )
        broker.requests.on_failed(self._failed)
        return broker

    def _may_fail(self, failure: BaseException) -> bool:
        # With nobody there who knows the metadata a broker gives up and is started again.
        return isinstance(failure, BrokerStartError)


AnyHost = NameserverHost | StorageHost | BrokerHost
