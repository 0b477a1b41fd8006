"""Three drivers over real Angelia tcp: replication, rest, death, cuts and return."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from strata_multiraft import TransferFailed
from strata_raft import Role
from strata_testing import until
from tests.integration.multiraft.conftest import replica_id
from tests.limits import within


async def test_entries_reach_all_nodes(cluster: Any) -> None:
    """A committed entry is applied everywhere, entries larger than a frame included."""
    await cluster.start(1, 2)
    payloads = [b"%d" % n for n in range(200)] + [bytes(5 << 20)]
    for raft_group in (1, 2):
        leader = await cluster.wait_leader(raft_group)
        replica = leader.multiraft.replicas()[raft_group]
        await asyncio.gather(*(replica.propose((payload,)) for payload in payloads))
    for raft_group in (1, 2):
        await until(partial(cluster.all_have, raft_group, payloads))


@pytest.mark.parametrize("codec", ["protobuf", "json", "avro"])
async def test_nodes_understand_each_other_over_http2(cluster: Any, codec: str) -> None:
    """The same traffic goes over the other transport and with every codec."""
    cluster.transport, cluster.codec = "http2", codec
    await cluster.start(1)
    payloads = [b"%d" % n for n in range(20)]
    for payload in payloads:
        await cluster.propose(1, payload)
    await until(lambda: cluster.all_have(1, payloads))
    await until(cluster.is_quiet)


async def test_idle_raft_groups_are_silent_and_wake_for_a_proposal(cluster: Any) -> None:
    """Without news no raft message is sent; a proposal afterwards is committed everywhere."""
    raft_groups = range(1, 21)
    await cluster.start(*raft_groups)
    for raft_group in raft_groups:
        await cluster.propose(raft_group, b"first")
    await until(cluster.is_quiet)

    async def are_silent() -> bool:
        before = sum(node.envelopes_sent() for node in cluster.nodes.values())
        await asyncio.sleep(0.8)
        after = sum(node.envelopes_sent() for node in cluster.nodes.values())
        return bool(cluster.is_quiet()) and after == before

    # A stall of the machine may have woken one of them once more.
    await until(are_silent)
    terms = {g: cluster.leader(g).multiraft.replicas()[g].term for g in raft_groups}
    for raft_group in raft_groups:
        await cluster.propose(raft_group, b"second")
    for raft_group in raft_groups:
        await until(partial(cluster.all_have, raft_group, [b"first", b"second"]))
    assert terms == {g: cluster.leader(g).multiraft.replicas()[g].term for g in raft_groups}


@pytest.mark.parametrize("quiet", [True, False])
async def test_raft_groups_of_a_killed_node_get_a_leader(cluster: Any, quiet: bool) -> None:
    """After a leader node's death its raft groups serve again, whether they rested or not."""
    raft_groups = range(1, 11)
    await cluster.start(*raft_groups)
    for raft_group in raft_groups:
        await cluster.propose(raft_group, b"before")
    if quiet:
        await until(cluster.is_quiet)
    victim = max(cluster.nodes.values(), key=lambda node: len(node.leads())).node_id
    orphans = [replica.raft_group for replica in cluster.nodes[victim].leads()]
    assert orphans
    log = await cluster.kill(victim)
    started_s = asyncio.get_running_loop().time()
    for raft_group in orphans:
        await cluster.propose(raft_group, b"after")
    within("leaders again", asyncio.get_running_loop().time() - started_s, 3)
    await until(lambda: victim in cluster.leader(orphans[0]).peering.heard_nodes()[1])

    await cluster.boot(victim, log)
    for raft_group in orphans:
        await until(partial(cluster.all_have, raft_group, [b"before", b"after"]))
    await until(cluster.is_quiet)


async def test_a_restart_faster_than_the_timeout_is_noticed(cluster: Any) -> None:
    """A new boot id means that all the node led is leaderless, at once."""
    await cluster.start(1)
    await cluster.propose(1, b"before")
    await until(cluster.is_quiet)
    victim = cluster.leader(1).node_id
    await cluster.boot(victim, await cluster.kill(victim))
    await cluster.propose(1, b"after")
    await until(lambda: cluster.all_have(1, [b"before", b"after"]))


async def test_rest_goes_on_while_a_follower_is_dead(cluster: Any) -> None:
    """A dead follower does not keep raft groups awake; when it is back it gets what it missed."""
    await cluster.start(1)
    await cluster.propose(1, b"before")
    leader = cluster.leader(1).node_id
    victim = next(node_id for node_id in cluster.nodes if node_id != leader)
    log = await cluster.kill(victim)
    await cluster.propose(1, b"missed")
    await until(cluster.is_quiet)
    await cluster.boot(victim, log)
    await until(lambda: cluster.all_have(1, [b"before", b"missed"]))
    assert cluster.leader(1).node_id == leader
    await until(cluster.is_quiet)


@pytest.mark.parametrize("direction", ["both", "in", "out"])
async def test_a_cut_leader_is_replaced(cluster: Any, direction: str) -> None:
    """A resting leader that is cut off, in one direction or both, steps down; the rest goes on."""
    await cluster.start(1)
    await cluster.propose(1, b"before")
    await until(cluster.is_quiet)
    old = cluster.leader(1)
    for other in cluster.nodes:
        if direction != "in":
            cluster.cut.add((old.node_id, other))
        if direction != "out":
            cluster.cut.add((other, old.node_id))
    replica = old.multiraft.replicas()[1]
    await until(lambda: replica.role is not Role.LEADER)
    await until(lambda: cluster.leader(1) not in (None, old))
    await cluster.leader(1).multiraft.replicas()[1].propose((b"during",))
    cluster.cut.clear()
    await until(lambda: cluster.all_have(1, [b"before", b"during"]))
    await until(cluster.is_quiet)


async def test_a_node_with_a_wrong_clock_hands_over(cluster: Any) -> None:
    """A leader whose clock is off by more than max_clock_skew_ms gives its leaderships away."""
    await cluster.start(1, 2, 3)
    for raft_group in (1, 2, 3):
        await cluster.propose(raft_group, b"x")
    node = max(cluster.nodes.values(), key=lambda node: len(node.leads()))
    assert node.leads()
    cluster.clocks[node.node_id].offset_ms = 5_000
    await until(lambda: not node.leads())
    await until(lambda: abs(node.peering.clock_skew_ms() - 5_000) < 500)
    for raft_group in (1, 2, 3):
        assert (await cluster.wait_leader(raft_group)) is not node
    others = [other for other in cluster.nodes.values() if other is not node]
    await until(lambda: all(abs(other.peering.clock_skew_ms()) < 250 for other in others))
    # Nobody hands it a leadership back, whoever wants it.
    leader = next(replica for other in others for replica in other.leads())
    with pytest.raises(TransferFailed, match="clock"):
        await leader.transfer_leadership(replica_id(leader.raft_group, node.node_id))
    assert node.peering.clock_is_off()


async def test_a_frame_for_another_node_is_refused(cluster: Any) -> None:
    """An address that was given to somebody else brings nothing to the wrong node."""
    await cluster.start(1)
    await cluster.propose(1, b"x")
    real = cluster.endpoint
    leader = cluster.leader(1)
    b, c = (node_id for node_id in cluster.nodes if node_id != leader.node_id)
    swapped = {b: c, c: b}
    cluster.endpoint = lambda source, target: real(source, swapped.get(target, target))
    await until(lambda: leader.peering.heard_nodes()[0] == [])
    cluster.endpoint = real
    await until(lambda: leader.peering.heard_nodes()[0] == sorted([b, c]))


async def test_a_node_behind_the_log_gets_a_snapshot(cluster: Any) -> None:
    """A replica whose entries are gone everywhere gets rows and entries over tcp, then goes on."""
    await cluster.start(1)
    await cluster.propose(1, b"0")
    leader = cluster.leader(1)
    victim = next(node_id for node_id in cluster.nodes if node_id != leader.node_id)
    log = await cluster.kill(victim)
    payloads = [b"0"] + [b"%d" % n * 1000 for n in range(1, 500)]
    for payload in payloads[1:]:
        await cluster.propose(1, payload)
    await until(lambda: cluster.all_have(1, payloads))
    for node in cluster.nodes.values():
        replica = node.multiraft.replicas()[1]
        node.machines[1].flush()
        node.machines[1].low = 400
        node.log.trim(replica.replica_id, 400)
        node.multiraft.log_trimmed()
    back = await cluster.boot(victim, log)
    await until(lambda: "installed" in back.machines[1].steps)
    await until(lambda: cluster.all_have(1, payloads))
    assert back.multiraft.replicas()[1].first_index == 400
    await cluster.propose(1, b"after")
    await until(lambda: cluster.all_have(1, [*payloads, b"after"]))
    await until(cluster.is_quiet)
