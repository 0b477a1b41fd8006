"""A storage node with a tier in memory, whose uploads a test drives step by step."""

from __future__ import annotations

import random
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.tier_policy import TierLevel, TierPolicy
from strata_runtime.metrics import Metrics
from strata_seglog.ports import Disk
from strata_state.ports import StateStore
from strata_storage.base.config import StorageConfig
from strata_storage.tiering.config import TierConfig
from strata_storage.tiering.metadata_publisher import MetadataSource
from strata_storage.tiering.opening import TierSetup
from strata_storage.tiering.parts import FixedTierPolicies, TierPolicies
from strata_storage.tiering.uploader import Uploader
from strata_storage.upkeep.retention import RetentionSource
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    node_under_test,
    small_config,
)
from strata_tier.store.drivers.memory import MemoryBucket

MIB = 1024 * 1024
URL = "memory://tier"
LOCAL_MS = 60_000
POLICY = TierPolicy(TierLevel.NOT_IN_DISK, LOCAL_MS)


class Tier:
    """A store in memory that outlives nodes, and what a node is told of it."""

    def __init__(self, policies: TierPolicies | None = None, **config: object) -> None:
        self.buckets: dict[str, MemoryBucket] = {}
        self.policies = policies or FixedTierPolicies(POLICY)
        self.config = TierConfig.model_validate({"url": URL, "home": "test"} | config)
        self.metadata: MetadataSource | None = None
        # Topic id, as text -> name.
        self.topic_names: dict[str, str] = {}

    @property
    def bucket(self) -> MemoryBucket:
        return self.buckets.setdefault(URL, MemoryBucket())

    @property
    def keys(self) -> list[str]:
        return sorted(self.bucket.objects)

    def setup(self) -> TierSetup:
        return TierSetup(
            self.config,
            self.policies,
            memory=self.buckets,
            topic_names=lambda: self.topic_names,
            metadata=self.metadata,
        )


def tiered_node(
    folder: Path,
    tier: Tier,
    *,
    clock: ManualClock | None = None,
    config: StorageConfig | None = None,
    retention: RetentionSource | None = None,
    disk: Disk | None = None,
    store: StateStore | None = None,
    metrics: Metrics | None = None,
) -> NodeUnderTest:
    """Return a node that keeps nothing in memory, so that reads go to log or tier."""
    return node_under_test(
        folder,
        clock=clock,
        config=config or small_config(recent_bytes=0),
        retention=retention,
        disk=disk,
        store=store,
        tier=tier.setup(),
        metrics=metrics,
    )


def uploader_of(node: NodeUnderTest, raft_group: int = GROUP) -> Uploader:
    """Return the uploader of a raft group's leader."""
    return node.app.node.tiering._led[raft_group].uploader


async def upload(node: NodeUnderTest) -> None:
    """Upload everything that waits, as if it were old enough."""
    node.clock.advance(31)
    uploader = uploader_of(node)
    while await uploader.step():
        pass


def is_uploaded(node: NodeUnderTest, raft_group: int = GROUP) -> bool:
    """Whether the tier has everything that was appended to a raft group."""
    machine = node.app.node.engine(raft_group).machine
    rows = machine.rows.queues.all()
    waits = any(machine.tier.commit_offset(t, q) != row.next_offset for t, q, row in rows)
    return not machine.tier.dispatch and not waits


async def retain(node: NodeUnderTest) -> None:
    """Do one turn of retention, of the tier and of the log."""
    for engine in node.app.node.engines():
        await node.app.node.tiering.retain(engine)
    await node.app.node.retain_once()


async def fetch_all(node: NodeUnderTest, queue: int = 0) -> list[tuple[int, bytes]]:
    """Return all (offset, message) of a queue, read page by page."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while True:
        request = pb.FetchRequest(
            raft_group=GROUP,
            topic_id=TOPIC.topic_id,
            queue=queue,
            offset=offset,
            max_messages=100,
        )
        response = await node.rpc.fetch(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        found += [(message.offset, message.message) for message in response.messages]
        if response.resume_offset >= response.next_offset:
            return found
        offset = response.resume_offset


def some_messages(rng: random.Random, count: int, size: int = 2_000) -> list[bytes]:
    """Return messages that differ."""
    return [rng.randbytes(rng.randrange(1, size)) for _ in range(count)]


async def fill(
    node: NodeUnderTest, rng: random.Random, rounds: int, boot_id: int = 1
) -> dict[int, list[bytes]]:
    """Append to two queues; return what each holds."""
    expected: dict[int, list[bytes]] = {1: [], 2: []}
    for _ in range(rounds):
        for queue, messages in expected.items():
            more = [*some_messages(rng, 5), rng.randbytes(400_000)]
            await node.append(more, boot_id=boot_id, queue=queue)
            messages += more
    return expected


async def empty_log(node: NodeUnderTest) -> None:
    """Let what is in the tier leave the log, and prove that it did."""
    node.clock.advance(61)
    # Beyond the newest segment, which never goes, nothing is in the tier.
    await node.append([b"last"], queue=3)
    for _ in range(4):
        await retain(node)
    assert node.app.node.status().log_first_position >= 16 * MIB
