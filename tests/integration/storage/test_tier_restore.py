"""A raft group comes back from the bucket alone, on a node that never saw it."""

from __future__ import annotations

import random
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_cli.commands.tier_restore import write_log
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, NodeUnderTest, lease_of
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep.restore import Restore, plan_restore
from tests.integration.storage.tiered_node import Tier, fetch_all, fill, tiered_node, upload
from tests.integration.storage.waiting import delay, end, half, let_pass, pop_bodies

REPLICA_ID = 100 + GROUP


async def _publish(node: NodeUnderTest) -> None:
    await node.app.node.tiering._led[GROUP].publisher.publish()


async def _restored(tier: Tier, folder: Path) -> Restore:
    """Write the log of a new node from the bucket."""
    restore = await plan_restore(MemoryObjectStore(tier.bucket), "test")
    write_log(restore.raft_groups, folder / "log", {GROUP: REPLICA_ID})
    return restore


def _new_home(tier: Tier) -> Tier:
    """Return the same buckets for a cluster with another home."""
    again = Tier(tier.policies, home="restored")
    again.buckets = tier.buckets
    return again


async def test_a_raft_group_comes_back_from_the_bucket(tmp_path: Path) -> None:
    """Every uploaded message is read byte for byte, new ones follow, and a restart keeps both."""
    rng, tier = random.Random(5), Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        expected = await fill(node, rng, 2)
        await upload(node)
        await _publish(node)
    old_keys = tier.keys
    await _restored(tier, tmp_path / "new")
    again = _new_home(tier)
    async with tiered_node(tmp_path / "new", again) as node:
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
        await node.append([b"after the restore"], boot_id=9, queue=1)
        assert (await fetch_all(node, 1))[-1] == (len(expected[1]), b"after the restore")
        await upload(node)
    async with tiered_node(tmp_path / "new", again) as node:
        assert len(await fetch_all(node, 1)) == len(expected[1]) + 1
        assert len(await fetch_all(node, 2)) == len(expected[2])
    assert set(old_keys) < set(tier.keys)
    assert all(key.startswith("restored/") for key in set(tier.keys) - set(old_keys))


async def test_what_was_not_uploaded_is_counted_and_passed_over(tmp_path: Path) -> None:
    """Offsets behind the last upload are lost, said so, and never given to other messages."""
    tier = Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        await node.append([b"one", b"two"], queue=1)
        await upload(node)
        await node.append([b"lost", b"lost too"], queue=1)
        await node.append([b"never uploaded"], queue=2)
        await _publish(node)
    restore = await _restored(tier, tmp_path / "new")
    (group,) = restore.raft_groups
    found = [(each.queue, each.commit_offset, each.next_offset, each.lost) for each in group.queues]
    assert found == [(1, 2, 4, 2), (2, 0, 1, 1)]
    async with tiered_node(tmp_path / "new", _new_home(tier)) as node:
        await node.append([b"new"], boot_id=9, queue=1)
        await node.append([b"new"], boot_id=9, queue=2)
        assert await fetch_all(node, 1) == [(0, b"one"), (1, b"two"), (4, b"new")]
        assert await fetch_all(node, 2) == [(1, b"new")]


async def test_a_consumer_group_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    """A message acked before the checkpoint is not seen again; a leased one comes again."""
    tier = Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        await node.append([f"message {number}".encode() for number in range(6)], queue=1)
        response = await node.pop(queue=1, max_messages=4)
        await node.ack(*[lease_of(message) for message in response.messages[:2]])
        await upload(node)
        await _publish(node)
    await _restored(tier, tmp_path / "new")
    async with tiered_node(tmp_path / "new", _new_home(tier)) as node:
        node.clock.advance(3_600)
        seen: list[bytes] = []
        while True:
            response = await node.pop(queue=1)
            if not response.messages:
                break
            seen += [message.message for message in response.messages]
            await node.ack(*map(lease_of, response.messages))
        assert sorted(seen) == [f"message {number}".encode() for number in range(2, 6)]


async def test_messages_that_wait_come_back_and_are_delivered(tmp_path: Path) -> None:
    """A delayed message is delivered once when it is due, a half one can still be committed."""
    tier = Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        await node.append([b"plain"], queue=1)
        await delay(node, [b"later"], 3_600_000)
        name = await half(node, b"half", 7_200_000)
        await upload(node)
        await _publish(node)
        clock = node.clock
    restore = await _restored(tier, tmp_path / "new")
    assert [(len(group.entries), group.lost_waiting) for group in restore.raft_groups] == [(2, 0)]
    async with tiered_node(tmp_path / "new", _new_home(tier), clock=clock) as node:
        plain = (await node.pop()).messages[0]
        assert plain.message == b"plain"
        await node.ack(lease_of(plain))
        let_pass(node, 3_601)
        assert await pop_bodies(node, wait_ms=60_000) == [b"later"]
        await end(node, name, pb.TRANSACTION_END_COMMIT)
        assert await pop_bodies(node, wait_ms=60_000) == [b"half"]
    async with tiered_node(tmp_path / "new", _new_home(tier), clock=clock) as node:
        engine = node.app.node.engine(GROUP)
        assert next(engine.machine.rows.pending.scan(), None) is None


async def test_only_the_named_topics_come_back(tmp_path: Path) -> None:
    """Nothing of other topics is restored, neither queues nor objects."""
    tier = Tier()
    async with tiered_node(tmp_path / "old", tier) as node:
        await node.append([b"one"], queue=1)
        await upload(node)
        await _publish(node)
    store = MemoryObjectStore(tier.bucket)
    (group,) = (await plan_restore(store, "test", {TOPIC.topic_id + 1})).raft_groups
    assert group.queues == []
    write_log([group], tmp_path / "new" / "log", {GROUP: REPLICA_ID})
    async with tiered_node(tmp_path / "new", _new_home(tier)) as node:
        request = pb.FetchRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, queue=1, offset=0, max_messages=9
        )
        response = await node.rpc.fetch(request, CONTEXT)
        assert (list(response.messages), response.next_offset) == ([], 0)
