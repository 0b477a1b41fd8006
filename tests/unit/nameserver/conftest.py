"""A nameserver without sockets, disks or time: rows in memory, a raft group that is a list."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.watch import WatchHub
from strata_multiraft.base.errors import NotLeader
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.leading.metadata import Metadata
from strata_nameserver.state.draft import applied_state
from strata_nameserver.state.machine import MetadataMachine
from strata_raft.types import Entry, EntryKind
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock
from strata_testing.metadata_store import MemoryMetadataStore
from tests.unit.nameserver.loaded_storage import Loaded, three_loaded

MAX_COMMAND_BYTES = 768 * 1024
"""Most bytes of an entry where segments of the log are as small as they may be."""


class ListReplica:
    """A one-voter raft group: entries are kept in a list and committed when a test says so."""

    def __init__(self, machine: MetadataMachine) -> None:
        self.machine = machine
        self.entries: list[Entry] = []
        self.leader = True
        self.commit_at_once = True
        self._waiting: list[asyncio.Future[int]] = []

    def is_ready_leader(self) -> bool:
        return self.leader

    def propose(self, payload: tuple[bytes, ...]) -> asyncio.Future[int]:
        if not self.leader:
            raise NotLeader(2)
        if sum(map(len, payload)) > MAX_COMMAND_BYTES:
            raise ValueError("the proposal has more than max_proposal_bytes")
        index = self.machine.applied_index() + len(self._waiting) + 1
        self.entries.append(Entry(1, index, EntryKind.NORMAL, payload))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self.commit_at_once:
            asyncio.get_running_loop().call_soon(self.commit)
        return future

    def commit(self) -> None:
        """Commit and apply what was proposed."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        batch = self.entries[-len(waiting) :]
        self.machine.apply(batch)
        for entry, future in zip(batch, waiting, strict=True):
            future.set_result(entry.index)

    def lose_leadership(self) -> None:
        """Drop what is not committed, as a new leader would."""
        self.leader = False
        waiting, self._waiting = self._waiting, []
        del self.entries[len(self.entries) - len(waiting) :]
        for future in waiting:
            future.set_exception(NotLeader(2))
        self.machine.on_follower(2, 2)

    async def applied(self, index: int) -> None:
        assert self.machine.applied_index() >= index

    async def read_barrier(self) -> int:
        return self.machine.applied_index()


@dataclass
class Nameserver:
    """All parts of a nameserver in memory."""

    config: NameserverConfig
    store: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        metrics = Metrics.disabled()
        self.hub = WatchHub(
            self.store,
            applied_state(self.store).counters.revision,
            self.config.watch_options(),
            metrics=metrics,
            stamp=applied_state(self.store).counters.stamp,
        )
        self.machine = MetadataMachine(self.store, self.hub, self.config, metrics=metrics)
        self.replica = ListReplica(self.machine)
        self.metadata = Metadata(
            self.replica,
            self.machine,
            self.hub,
            config=self.config,
            clock=self.clock,
            metrics=metrics,
        )

    def restarted(self) -> Nameserver:
        """Return a new nameserver over the same rows."""
        return Nameserver(self.config, self.store, self.clock)

    async def with_storage(self, node_id: str = "storage-a") -> Nameserver:
        """Register a storage node, so that slots have owners."""
        await self.metadata.register_node(storage_node(node_id))
        return self


def storage_node(node_id: str, boot_id: int = 1) -> meta_pb2.Node:
    """Return a storage node as it registers."""
    return meta_pb2.Node(
        node_id=node_id,
        kind=meta_pb2.NODE_KIND_STORAGE,
        endpoints=[f"inproc:{node_id}"],
        boot_id=boot_id,
    )


MakeNameserver = type[Nameserver]


@pytest.fixture
def make_nameserver() -> MakeNameserver:
    """Make more nameservers, with other settings."""
    return Nameserver


@pytest.fixture
async def loaded(make_nameserver: MakeNameserver) -> Loaded:
    """Three storage nodes, each leading one raft group, and a topic of twelve queues."""
    return await three_loaded(make_nameserver)


@pytest.fixture
async def nameserver() -> Nameserver:
    return await Nameserver(NameserverConfig().alone()).with_storage()


@pytest.fixture
def small_nameserver() -> Nameserver:
    """A nameserver whose limits are reached at once."""
    return Nameserver(
        NameserverConfig(
            max_topics=3,
            max_consumer_groups=1,
            max_tombstones=2,
            max_nodes=1,
            max_quotas=1,
            max_watchers=1,
            max_queues_per_topic=4,
            max_attributes_bytes=8,
            max_recent_changes=2,
            max_kept_revisions=4,
            max_watch_response_changes=3,
        ).alone()
    )
