"""A damaged log: one raft group is read-only, with a reason; all else is served (rules 7, 8)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.frames import HEADER_BYTES
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    message_id,
    node_under_test,
    small_config,
)
from tests.integration.storage.damaged_log import (
    GROUPS,
    OTHER_GROUP,
    append,
    fetch_all,
    flip,
    frames_of,
    status_of,
)

CONFIG = small_config(default_retention_ms=60_000, recent_bytes=0, scrub_bytes_per_s=0)


async def test_rows_that_cannot_be_rebuilt_in_full_make_one_group_read_only(
    tmp_path: Path,
) -> None:
    """The node starts, the other group serves; the bad frame is named and never served."""
    rng, clock = random.Random(1), ManualClock()
    sent: dict[int, list[bytes]] = {GROUP: [], OTHER_GROUP: []}
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        for number in range(40):
            raft_group = GROUPS[number % 2]
            body = rng.randbytes(700_000)
            sent[raft_group].append(body)
            await append(node, raft_group, [body], raft_group - 1)
            clock.advance(4)
        await node.app.node.retain_once()
        assert node.app.node.status().log_first_position > 0
        before = await fetch_all(node, GROUP, 0)
    shutil.rmtree(tmp_path / "state")
    *_, bad = frames_of(tmp_path / "log", 100 + GROUP, sealed=True)
    flip(tmp_path / "log", int(bad["position"]) + HEADER_BYTES + 600_000)
    for restart in range(2):
        async with node_under_test(
            tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS
        ) as node:
            status = status_of(node, GROUP)
            assert status.state == pb.REPLICA_STATE_READ_ONLY
            assert f"entry {bad['index']}" in status.reason
            assert str(bad["segment"]) in status.reason
            assert "strata log repair" in status.reason
            assert not status.leader
            refusal = (await append(node, GROUP, [b"x"], 0)).refusal
            assert (refusal.outcome, refusal.reason) == (pb.OUTCOME_READ_ONLY, status.reason)
            readable = await fetch_all(node, GROUP, 0)
            lost = before.keys() - readable.keys()
            assert len(lost) == 1, restart
            assert readable == {offset: before[offset] for offset in before if offset not in lost}
            assert status_of(node, OTHER_GROUP).leader
            result = await append(node, OTHER_GROUP, [b"other"], 1)
            assert result.parts[0].base_offset == len(sent[OTHER_GROUP]) + restart


async def test_a_group_damaged_in_the_newest_segment_shows_what_comes_before(
    tmp_path: Path,
) -> None:
    """Also when its rows are gone: entries up to the damage are applied and served."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        for number in range(6):
            await append(node, GROUP, [b"%d" % number * 300], 0)
            await append(node, OTHER_GROUP, [b"other"], 1)
    entries = frames_of(tmp_path / "log", 101)
    flip(tmp_path / "log", int(entries[4]["position"]) + HEADER_BYTES + 200)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        assert status_of(node, GROUP).state == pb.REPLICA_STATE_READ_ONLY
        assert await fetch_all(node, GROUP, 0) == {at: b"%d" % at * 300 for at in range(4)}
        pop = pb.PopRequest(raft_group=GROUP, consumer_group_id=5, topic=pb.TopicRef(topic_id=7))
        refused = await node.rpc.pop(pop, CONTEXT)
        assert refused.refusal.outcome == pb.OUTCOME_READ_ONLY
        assert len(await fetch_all(node, OTHER_GROUP, 1)) == 6


async def test_a_leader_that_cannot_read_recent_ids_looks_them_up_in_rows(
    tmp_path: Path,
) -> None:
    """Damage among recent entries costs speed: a repeat is still known, and not stored twice."""
    rng, clock = random.Random(1), ManualClock()
    ids = [message_id(b"%d" % number) for number in range(16)]
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        for number in range(16):
            body = rng.randbytes(900_000)
            await append(node, GROUPS[number % 2], [body], number % 2, ids=[ids[number]])
        before = await fetch_all(node, GROUP, 0)
    bad = frames_of(tmp_path / "log", 101, sealed=True)[0]
    flip(tmp_path / "log", int(bad["position"]) + HEADER_BYTES + 600_000)
    async with node_under_test(tmp_path, clock=clock, config=CONFIG, raft_groups=GROUPS) as node:
        for number in (0, 14):
            repeated = (await append(node, GROUP, [b"again"], 0, ids=[ids[number]])).parts[0]
            assert [(each.queue, each.offset) for each in repeated.duplicates] == [(0, number // 2)]
        fresh = await append(node, GROUP, [b"fresh"], 0)
        assert fresh.parts[0].base_offset == len(before)
        request = pb.FetchRequest(
            raft_group=GROUP, topic_id=7, queue=0, offset=1, max_messages=1_000
        )
        fetched = await node.rpc.fetch(request, CONTEXT)
        assert [m.message for m in fetched.messages] == [*list(before.values())[1:], b"fresh"]
        assert (await append(node, OTHER_GROUP, [b"other"], 1)).parts[0].base_offset == 8
