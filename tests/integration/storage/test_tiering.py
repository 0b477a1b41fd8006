"""Old messages leave the log for the tier and are read from there, byte for byte."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2 as pb
from strata_metadata import MetadataCache, WatchOptions
from strata_mq.tier_policy import TierLevel, TierPolicy
from strata_runtime.metrics import Metrics
from strata_storage.tiering.parts import FixedTierPolicies
from strata_testing import ManualClock, until
from strata_testing.metadata_store import MemoryMetadataStore
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    lease_of,
)
from strata_tier.objects import metadata_key
from strata_tier.objects.costs import OTHER_TOPICS
from strata_tier.objects.spaces import Stores
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep.audit import AuditOptions, verify
from strata_tier.upkeep.bucket import read_archive
from tests.integration.storage.tiered_node import (
    LOCAL_MS,
    MIB,
    Tier,
    empty_log,
    fetch_all,
    fill,
    retain,
    tiered_node,
    upload,
)


async def test_messages_are_read_from_the_tier_once_the_log_gave_them_up(tmp_path: Path) -> None:
    """Every message comes back from the tier, in order, also after a restart."""
    rng, tier, clock = random.Random(1), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
    assert tier.keys


async def test_a_consumer_group_pops_a_backlog_that_only_the_tier_has(tmp_path: Path) -> None:
    """A pop leases and delivers messages of the tier as those of the log."""
    rng, tier = random.Random(2), Tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        popped: list[bytes] = []
        while True:
            response = await node.pop(queue=1)
            assert not response.HasField("refusal"), response.refusal
            if not response.messages:
                break
            popped += [message.message for message in response.messages]
            await node.ack(*map(lease_of, response.messages))
        assert popped == expected[1]


async def test_a_store_that_is_gone_refuses_and_takes_no_lease(tmp_path: Path) -> None:
    """Pops and fetches say that the tier cannot be read; later they give every message."""
    rng, tier = random.Random(3), Tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        tier.bucket.missing = True
        popped = await node.pop(queue=1)
        assert popped.refusal.outcome == pb.OUTCOME_OVERLOADED
        assert "tier" in popped.refusal.reason
        request = pb.FetchRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, queue=2, offset=0, max_messages=10
        )
        fetched = await node.rpc.fetch(request, CONTEXT)
        assert fetched.refusal.outcome == pb.OUTCOME_OVERLOADED
        tier.bucket.missing = False
        again = await node.pop(queue=1)
        assert [message.attempt_count for message in again.messages] == [1] * len(again.messages)
        assert [message.message for message in again.messages] == expected[1][: len(again.messages)]


async def test_metrics_tell_how_far_the_tier_is(tmp_path: Path) -> None:
    """The gauges show what waits, what was uploaded, and the oldest ages of log and tier."""
    metrics = Metrics()
    async with tiered_node(tmp_path, Tier(), metrics=metrics) as node:
        behind = "rocketmq_tiered_store_dispatch_behind"
        assert node.gauges(behind) == {"": 0}
        await node.append([b"%d" % number for number in range(5)], queue=1)
        assert node.gauges(behind) == {"": 5}
        await upload(node)
        assert node.gauges(behind) == {"": 0}
        dispatched = metrics.counter("rocketmq_tiered_store_messages_dispatch_total")
        assert dispatched.value({"namespace": "", "topic": OTHER_TOPICS}) == 5
        node.clock.advance(9)
        await node.append([b"young"], queue=2)
        await retain(node)
        # An upload pretends that 31 s have passed.
        ages = node.gauges("rocketmq_storage_message_reserve_time")
        assert ages == {
            '{storage_medium="disk",storage_type="local"}': 40_000,
            '{storage_medium="blob",storage_type="tiered"}': 40_000,
        }


async def test_reads_that_the_tier_should_have_served_are_counted(tmp_path: Path) -> None:
    """A topic that is read from the tier first is read from the log while the store is gone."""
    metrics, tier = Metrics(), Tier(FixedTierPolicies(TierPolicy(TierLevel.FORCE, LOCAL_MS)))
    async with tiered_node(tmp_path, tier, metrics=metrics) as node:
        await node.append([b"a", b"b"], queue=1)
        await upload(node)
        fallbacks = metrics.counter("rocketmq_tiered_store_get_message_fallback_total")
        served = metrics.counter("rocketmq_tiered_store_messages_out_total")
        tier.bucket.missing = True
        assert await fetch_all(node, 1) == [(0, b"a"), (1, b"b")]
        assert (fallbacks.value(), served.value()) == (1, 0)
        tier.bucket.missing = False
        assert await fetch_all(node, 1) == [(0, b"a"), (1, b"b")]
        assert (fallbacks.value(), served.value()) == (1, 2)
        # The log alone has this one: nobody asked the tier.
        await node.append([b"c"], queue=1)
        assert await fetch_all(node, 1) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert fallbacks.value() == 1


async def test_appends_go_on_while_the_store_is_gone(tmp_path: Path) -> None:
    """Nothing is lost or doubled when uploads fail for a while."""
    rng, tier = random.Random(4), Tier()
    async with tiered_node(tmp_path, tier) as node:
        tier.bucket.missing = True
        expected = await fill(node, rng, 5)
        try:
            await upload(node)
        except Exception as error:  # noqa: BLE001
            assert "gone" in str(error) or "missing" in str(error).lower(), error
        more = await fill(node, rng, 21)
        for queue, messages in more.items():
            expected[queue] += messages
        tier.bucket.missing = False
        await upload(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_lost_rows_come_back_from_log_and_tier(tmp_path: Path) -> None:
    """With the row store deleted, the index of what the log gave up is read from the tier."""
    rng, tier, clock = random.Random(5), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, rng, 26)
        await node.append([b"found"], queue=1, keys=["key-1"])
        expected[1].append(b"found")
        await upload(node)
        await empty_log(node)
    shutil.rmtree(tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert not node.app.node.status().replicas[0].reason
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
        request = pb.QueryRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, key="key-1", max_messages=10
        )
        found = await node.rpc.query(request, CONTEXT)
        assert [message.message for message in found.messages] == [b"found"]
        # Appends and uploads go on where they were.
        more = await fill(node, rng, 26, boot_id=2)
        await upload(node)
        await empty_log(node)
        for queue, messages in more.items():
            assert await fetch_all(node, queue) == list(enumerate(expected[queue] + messages))


async def test_lost_rows_come_back_that_the_tier_got_after_the_checkpoint(tmp_path: Path) -> None:
    """The checkpoint knows of messages, not that they are in the tier; the log has them no more."""
    rng, tier, clock = random.Random(8), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, rng, 26)
        clock.advance(40)
        for queue, messages in (await fill(node, rng, 20)).items():
            expected[queue] += messages
        storage = node.app.node
        (replica_id,) = (engine.replica_id for engine in storage.engines())
        storage._keeping.checkpointer.want(replica_id)
        await storage._keeping.checkpointer.write_due(storage.engines(), storage.replicas())
        covered = storage._keeping.checkpointer.indexes[replica_id]
        # Another 31 s: the first ones are old enough to leave the log then.
        await upload(node)
        for _ in range(4):
            await retain(node)
        assert storage.status().log_first_position >= 16 * MIB
        assert storage._keeping.checkpointer.indexes[replica_id] == covered, (
            "another one was written"
        )
    shutil.rmtree(tmp_path / "state")
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert not node.app.node.status().replicas[0].reason
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_lost_rows_of_what_the_log_still_has_need_no_tier(tmp_path: Path) -> None:
    """The log may give it up and has not yet; its objects may be gone since this node was away."""
    rng, tier, clock = random.Random(9), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, rng, 2)
        await upload(node)
        clock.advance(LOCAL_MS / 1_000)
        await retain(node)
        storage = node.app.node
        (engine,) = storage.engines()
        assert engine.machine.tier.local_offset(TOPIC.topic_id, 1) == len(expected[1])
        assert storage.status().log_first_position == 0
        checkpointer = storage._keeping.checkpointer
        checkpointer.want(engine.replica_id)
        await checkpointer.write_due(storage.engines(), storage.replicas())
        assert checkpointer.indexes[engine.replica_id] > 0
    shutil.rmtree(tmp_path / "state")
    tier.bucket.objects.clear()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert not node.app.node.status().replicas[0].reason
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_lost_rows_are_not_made_up_while_the_store_is_gone(tmp_path: Path) -> None:
    """The raft group is read-only, says why, and is whole again when the store is back."""
    rng, tier, clock = random.Random(6), Tier(), ManualClock()
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
    shutil.rmtree(tmp_path / "state")
    tier.bucket.missing = True
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        assert "tier" in node.app.node.status().replicas[0].reason
    tier.bucket.missing = False
    async with tiered_node(tmp_path, tier, clock=clock) as node:
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_a_message_of_the_tier_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A message that no consumer could take becomes a dead letter although the log lacks it."""
    rng, tier = random.Random(7), Tier()
    async with tiered_node(tmp_path, tier) as node:
        await node.append([b"hopeless"], queue=1, keys=["key-7"])
        await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        (message,) = (await node.pop(queue=1, max_messages=1)).messages
        request = pb.ForwardToDeadLetterRequest(
            raft_group=GROUP, lease=lease_of(message), dead_letter_topic_id=DEAD_LETTER_TOPIC_ID
        )
        response = await node.rpc.forward_to_dead_letter(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        found = await node.rpc.query(
            pb.QueryRequest(
                raft_group=GROUP, topic_id=DEAD_LETTER_TOPIC_ID, key="key-7", max_messages=1
            ),
            CONTEXT,
        )
        assert [message.message for message in found.messages] == [b"hopeless"]


async def test_what_a_restore_needs_is_published(tmp_path: Path) -> None:
    """The store alone tells what is in it: checkpoint, manifest, and all objects, whole."""
    rng, tier = random.Random(8), Tier()
    async with tiered_node(tmp_path, tier) as node:
        await fill(node, rng, 3)
        await upload(node)
        await retain(node)
        stores = Stores(MemoryObjectStore(tier.bucket))
        report = await verify(stores, "test", AuditOptions())
        assert report.is_whole, report.findings
        counts = (report.raft_groups, report.archives, report.objects, report.unnamed_objects)
        assert counts == (1, 1, 1, 0)
        # Only the newest ones stay.
        for _ in range(4):
            await node.append([b"news"], queue=1)
            node.clock.advance(301)
            await retain(node)
        assert len([key for key in tier.keys if key.endswith(".json")]) == 3
        assert len([key for key in tier.keys if key.endswith(".archive")]) == 3
        assert (await verify(stores, "test", AuditOptions())).is_whole


def disk_bytes(folder: Path) -> int:
    """Return what the log takes on the disk."""
    return sum(file.stat().st_blocks * 512 for file in (folder / "log").iterdir())


async def test_a_checkpoint_names_the_topics_of_its_raft_group(tmp_path: Path) -> None:
    """Not a million others, in the archive of each raft group."""
    tier = Tier()
    tier.topic_names = {str(topic_id): f"%t{topic_id}" for topic_id in range(1, 500)}
    async with tiered_node(tmp_path, tier) as node:
        await node.append([b"one"])
        await upload(node)
        await retain(node)
    (key,) = [key for key in tier.keys if "/checkpoints/" in key]
    archive = await read_archive(MemoryObjectStore(tier.bucket), key)
    assert archive.description.names == {str(TOPIC.topic_id): f"%t{TOPIC.topic_id}"}


async def test_metadata_are_published_while_raft_groups_rest(tmp_path: Path) -> None:
    """Topics and groups are made and changed without a message in any of them."""
    tier = Tier()
    cache = MetadataCache(MemoryMetadataStore(), WatchOptions(), Metrics.disabled())
    tier.metadata = cache

    def learn(revision: int) -> None:
        topic = meta_pb2.Topic(topic_id=revision, name=f"t{revision}", queue_count=1)
        change = meta_pb2.Change(topic=topic)
        cache.apply(meta_pb2.WatchResponse(revision=revision, changes=[change]))

    def published() -> list[str]:
        return [key for key in tier.keys if key.startswith("test/metadata/")]

    async with tiered_node(tmp_path, tier) as node:
        learn(5)
        await node.append([b"one"])
        await retain(node)
        assert published() == [metadata_key("test", 5)]
        # Until the raft group has nothing more to say by itself.
        for _ in range(3):
            node.clock.advance(301)
            await retain(node)
        manifests = [key for key in tier.keys if "/manifests/" in key]
        learn(6)
        await retain(node)
        learn(7)
        await retain(node)
        assert published() == [metadata_key("test", revision) for revision in (5, 6)]
        node.clock.advance(301)
        await retain(node)
        assert published() == [metadata_key("test", revision) for revision in (5, 6, 7)]
        assert [key for key in tier.keys if "/manifests/" in key] == manifests


async def test_segments_leave_the_disk_once_the_tier_has_them_verified(tmp_path: Path) -> None:
    """Not before the local retention is over, nor before the store gave every byte back."""
    rng, tier = random.Random(9), Tier()
    async with tiered_node(tmp_path, tier) as node:
        expected = await fill(node, rng, 26)
        # Three segments, and the next one, which is made in the background.
        await until(lambda: disk_bytes(tmp_path) >= 32 * MIB)
        full = disk_bytes(tmp_path)
        await retain(node)
        assert disk_bytes(tmp_path) >= full, "nothing is in the tier"
        await upload(node)
        for _ in range(3):
            await retain(node)
        assert disk_bytes(tmp_path) >= full, "the local retention goes on"
        node.clock.advance(61)
        tier.bucket.missing = True
        for _ in range(3):
            await retain(node)
        assert disk_bytes(tmp_path) >= full, "the copies cannot be read back"
        tier.bucket.missing = False
        await empty_log(node)
        assert disk_bytes(tmp_path) <= full - 16 * MIB
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
