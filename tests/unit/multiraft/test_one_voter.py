"""The driver with raft groups of one voter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strata_multiraft import LogFull, NotLeader, Overloaded, ReadOnly, Replica
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.replica.apply_queue import ApplyQueue
from strata_raft import Entry, EntryKind, Role
from strata_seglog.errors import DiskFull, LogFailed
from strata_seglog.frames import Frame, FrameKind

Settled = Callable[[], Awaitable[None]]


async def test_sole_voter_leads_at_once_and_commits(make_node: Any, settled: Settled) -> None:
    """A sole voter elects itself at start, and a proposal's future gives its index."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    assert replica.is_ready_leader()
    assert replica.role is Role.LEADER
    assert await replica.propose((b"a", b"b")) == 2
    await replica.applied(2)
    assert node.machines[1].payloads() == [b"ab"]
    assert node.machines[1].told == [("leader", 1)]
    await node.multiraft.stop()


async def test_no_proposal_before_the_no_op_is_applied(make_node: Any, settled: Settled) -> None:
    """A leader takes no proposal until the no-op of its term is committed and applied (rule 1)."""
    node = make_node()
    replica = node.host()
    node.gate.close()
    await node.multiraft.start()
    await settled()
    assert replica.role is Role.LEADER
    assert not replica.is_ready_leader()
    with pytest.raises(NotLeader):
        replica.propose((b"too early",))
    node.gate.open()
    await settled()
    assert await replica.propose((b"now",)) == 2
    await node.multiraft.stop()


async def test_proposals_accumulate_while_a_sync_runs(make_node: Any, settled: Settled) -> None:
    """Everything proposed during one sync, in all raft groups, shares the next one."""
    node = make_node()
    replicas = [node.host(group, 10 + group) for group in (1, 2, 3)]
    await node.multiraft.start()
    await settled()
    before = node.log.syncs
    node.gate.close()
    first = replicas[0].propose((b"first",))
    await settled()
    rest = [replica.propose((b"rest",)) for replica in replicas for _ in range(5)]
    await settled()
    assert not any(future.done() for future in [first, *rest])
    node.gate.open()
    await asyncio.gather(first, *rest)
    assert node.log.syncs == before + 2
    await node.multiraft.stop()


async def test_what_a_sync_does_not_cover_yet_is_told(make_node: Any, settled: Settled) -> None:
    """Payloads under way and those behind them count; once they are durable, nothing does."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    assert node.multiraft.unsynced_bytes() == 0
    node.gate.close()
    first = replica.propose((b"x" * 100,))
    await settled()
    assert node.multiraft.unsynced_bytes() == 100
    second = node.multiraft.write_control(
        [Frame(FrameKind.CHECKPOINT, 11, 1, 0, 0, payload=(b"yy",))]
    )
    await settled()
    assert node.multiraft.unsynced_bytes() == 102
    node.gate.open()
    await asyncio.gather(first, second)
    assert node.multiraft.unsynced_bytes() == 0
    await node.multiraft.stop()


def test_committed_entries_that_are_not_applied_are_told_in_bytes() -> None:
    """Only what may be applied counts, and only what is in memory."""
    queue = ApplyQueue(0, 0, limit_bytes=1_000)
    queue.wrote([Entry(1, index, EntryKind.NORMAL, (b"x" * 10,)) for index in (1, 2, 3)])
    assert queue.lag_bytes() == 0
    queue.ready_index = 2
    assert queue.lag_bytes() == 20
    queue.take(1, 1)
    queue.applied_index = 1
    assert queue.lag_bytes() == 10


async def test_nothing_acknowledged_is_lost_by_a_restart(make_node: Any, settled: Settled) -> None:
    """After a crash a new node applies every acknowledged proposal again, in order."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    acked = [f"{number}".encode() for number in range(50)]
    for payload in acked:
        await replica.propose((payload,))
    again = make_node(log=node.log.crashed())
    reborn = again.host()
    await again.multiraft.start()
    index = await reborn.propose((b"later",)) if reborn.is_ready_leader() else 0
    await settled()
    assert again.machines[1].payloads()[:50] == acked
    assert reborn.term == 2
    assert index == 0 or index == reborn.last_index
    await node.multiraft.stop()
    await again.multiraft.stop()


async def test_hard_state_is_written_only_when_term_or_vote_change(
    make_node: Any, settled: Settled
) -> None:
    """The commit index alone never costs a frame."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    for _ in range(5):
        await replica.propose((b"x",))
    kinds = [frame.kind for frame in node.log.frames()]
    assert kinds == [FrameKind.HARD_STATE] + [FrameKind.ENTRY] * 6
    await node.multiraft.stop()


async def test_idle_raft_groups_cost_nothing(make_node: Any, settled: Settled) -> None:
    """A leading sole voter is not ticked."""
    node = make_node(options=MultiRaftOptions(tick_ms=1))
    for group in range(1, 101):
        node.host(group, group)
    await node.multiraft.start()
    await settled()
    assert not node.multiraft.ticker.ticked
    await node.multiraft.stop()


async def test_read_barrier_sees_what_was_acknowledged(make_node: Any, settled: Settled) -> None:
    """A read that starts after an ack waits until that entry is applied (rule 3)."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    for number in range(20):
        index = await replica.propose((b"%d" % number,))
        assert await replica.read_barrier() >= index
        assert node.machines[1].payloads()[-1] == b"%d" % number
    await node.multiraft.stop()


async def test_read_barrier_waits_for_the_no_op(make_node: Any, settled: Settled) -> None:
    """A leader that has committed nothing of its term does not answer reads yet (thesis 6.4)."""
    node = make_node()
    replica = node.host()
    node.gate.close()
    await node.multiraft.start()
    read = asyncio.ensure_future(replica.read_barrier())
    await settled()
    assert not read.done()
    node.gate.open()
    assert await read == 1
    await node.multiraft.stop()


async def test_sync_error_is_fatal(make_node: Any, settled: Settled) -> None:
    """A failed sync is reported as fatal, and nothing is answered after it (rule 7)."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    node.log.failures.append(LogFailed("fsync: EIO"))
    future = replica.propose((b"x",))
    await settled()
    assert [task for task, _ in node.fatal] == ["multiraft.write"]
    assert isinstance(node.fatal[0][1], LogFailed)
    assert not future.done()
    await node.multiraft.stop()
    with pytest.raises(NotLeader):
        await future


async def test_disk_full_refuses_proposals_and_serves_reads(
    make_node: Any, settled: Settled
) -> None:
    """Without room proposals fail with LogFull, reads go on, and the index is used again later."""
    # Long enough that a busy machine still comes to the refusal within it.
    node = make_node(options=MultiRaftOptions(tick_ms=1000, disk_full_retry_ms=1000))
    replica = node.host()
    await node.multiraft.start()
    await settled()
    assert await replica.propose((b"kept",)) == 2
    node.log.failures.append(DiskFull("no room"))
    futures = [replica.propose((b"lost",)) for _ in range(3)]
    await settled()
    for future in futures:
        with pytest.raises(LogFull):
            await future
    assert replica.role is Role.LEADER
    with pytest.raises(LogFull):
        replica.propose((b"refused",))
    assert await replica.read_barrier() == 2
    assert await _proposed_at_last(replica, b"again") == 3
    await replica.applied(3)
    assert node.machines[1].payloads() == [b"kept", b"again"]
    # Speculative state was dropped and taken up anew.
    assert node.machines[1].told == [("leader", 1), ("follower", 0), ("leader", 1)]
    assert not node.fatal
    await node.multiraft.stop()


async def _proposed_at_last(replica: Replica, payload: bytes) -> int:
    """Propose until there is room; return the index."""
    while True:
        try:
            return await replica.propose((payload,))
        except LogFull:
            await asyncio.sleep(0.01)


async def test_disk_full_during_the_election_ends_in_a_later_term(
    make_node: Any, settled: Settled
) -> None:
    """A vote that could not be stored is never acted on; the replica campaigns again."""
    node = make_node()
    replica = node.host()
    node.log.failures.append(DiskFull("no room"))
    await node.multiraft.start()
    await settled()
    assert not replica.is_ready_leader()
    await asyncio.sleep(0.01)  # the disk is tried again
    for _ in range(10):
        node.multiraft.tick()
    await settled()
    assert replica.is_ready_leader()
    assert replica.term == 2
    await node.multiraft.stop()


async def test_damaged_replica_is_read_only(make_node: Any, settled: Settled) -> None:
    """A damaged replica neither campaigns nor takes proposals, and says why (rule 8)."""
    node = make_node()
    node.host()
    await node.multiraft.start()
    await settled()
    await node.multiraft.stop()
    log = node.log.crashed()
    log.damaged[11] = "bad frame at 4096"
    again = make_node(log=log)
    replica = again.host()
    await again.multiraft.start()
    await settled()
    assert "bad frame at 4096" in replica.read_only
    assert replica.role is Role.FOLLOWER
    with pytest.raises(ReadOnly, match="bad frame at 4096"):
        replica.propose((b"x",))
    assert await replica.read_barrier() == 0
    await again.multiraft.stop()


async def test_failed_apply_stops_one_raft_group_only(make_node: Any, settled: Settled) -> None:
    """Apply never skips: it stops at the last good index and the others go on (rule 11)."""
    node = make_node()
    broken, healthy = node.host(1, 11), node.host(2, 12)
    await node.multiraft.start()
    await settled()
    node.machines[1].fails_at = 3
    assert await broken.propose((b"2",)) == 2
    assert await broken.propose((b"3",)) == 3
    with pytest.raises(ReadOnly, match="apply stopped at index 2"):
        await broken.applied(3)
    with pytest.raises(ReadOnly):
        broken.propose((b"4",))
    assert broken.applied_index == 2
    assert await healthy.propose((b"2",)) == 2
    assert not node.fatal
    await node.multiraft.stop()


async def test_limits_refuse_with_their_name(make_node: Any, settled: Settled) -> None:
    """A full limit refuses at once, names itself, and is free again after commit."""
    options = MultiRaftOptions(max_proposals_in_flight=2, max_bytes_in_flight=100, tick_ms=1000)
    node = make_node(options=options)
    replica = node.host()
    await node.multiraft.start()
    await settled()
    with pytest.raises(Overloaded, match="max_bytes_in_flight"):
        replica.propose((b"x" * 101,))
    futures = [replica.propose((b"x",)) for _ in range(2)]
    with pytest.raises(Overloaded, match="max_proposals_in_flight"):
        replica.propose((b"x",))
    await asyncio.gather(*futures)
    assert await replica.propose((b"x" * 100,)) == 4
    await node.multiraft.stop()


async def test_replay_is_read_back_in_pieces(make_node: Any, settled: Settled) -> None:
    """At a restart committed entries come from the log, in batches of `max_apply_bytes`."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    await asyncio.gather(*(replica.propose((b"x" * 40,)) for _ in range(30)))
    await node.multiraft.stop()
    options = MultiRaftOptions(tick_ms=1000, max_apply_bytes=100)
    again = make_node(log=node.log.crashed(), options=options)
    reborn = again.host()
    await again.multiraft.start()
    await reborn.applied(31)
    assert len(again.machines[1].payloads()) == 30
    assert again.machines[1].entries[0].kind is EntryKind.NO_OP
    await again.multiraft.stop()


async def test_checkpoint_frames_share_the_group_commit(make_node: Any, settled: Settled) -> None:
    """Control frames are durable when their future is done, and cost no sync of their own."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    before = node.log.syncs
    frame = Frame(FrameKind.CHECKPOINT, 11, 1, 1, 1, payload=(b"\x01\x01\x00\x00",))
    written = replica.write_checkpoint([frame])
    index = replica.propose((b"beside it",))
    await asyncio.gather(written, index)
    assert node.log.syncs == before + 1
    assert frame in node.log.frames()
    await node.multiraft.stop()


async def test_stop_writes_what_was_proposed(make_node: Any, settled: Settled) -> None:
    """A proposal made before `stop` is committed."""
    node = make_node()
    replica = node.host()
    await node.multiraft.start()
    await settled()
    future = replica.propose((b"last",))
    await node.multiraft.stop()
    assert await future == 2


async def test_a_raft_group_is_hosted_once(make_node: Any) -> None:
    """Hosting a raft group twice is an error."""
    node = make_node()
    node.host()
    with pytest.raises(ValueError, match="hosted already"):
        node.host()
