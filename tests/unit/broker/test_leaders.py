"""Choice of the node that a broker asks: beliefs and how they change."""

from __future__ import annotations

import asyncio

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, OVERLOADED, UNAVAILABLE
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.leaders import LeaderMap
from strata_testing import ManualClock

NODES = ("a", "b", "c")
GROUP = 1


@pytest.fixture
def view() -> MetadataView:
    """Raft groups 1 and 2 with voters on a, b and c and a learner on d."""
    view = MetadataView()
    changes = [
        meta_pb2.Change(
            node=meta_pb2.Node(
                node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, state=meta_pb2.NODE_STATE_UP
            )
        )
        for node_id in (*NODES, "d")
    ]
    for raft_group in (GROUP, 2):
        row = meta_pb2.RaftGroup(raft_group=raft_group)
        row.replicas.add(node_id="d", learner=True)
        for node_id in NODES:
            row.replicas.add(node_id=node_id)
        changes.append(meta_pb2.Change(raft_group=row))
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    return view


@pytest.fixture
def clock() -> ManualClock:
    """The time."""
    return ManualClock()


@pytest.fixture
def leaders(view: MetadataView, clock: ManualClock) -> LeaderMap:
    """Nothing is known yet."""
    return LeaderMap(view, StorageClientSection(distrust_ms=500), clock)


def test_the_first_choice_is_a_voter_and_the_preferred_one(
    view: MetadataView, leaders: LeaderMap
) -> None:
    """A learner never leads; a node that should lead probably does."""
    assert leaders.node_of(GROUP) == "a"
    row = meta_pb2.RaftGroup(raft_group=2, preferred_leader_node_id="c")
    for node_id in NODES:
        row.replicas.add(node_id=node_id)
    change = meta_pb2.Change(raft_group=row)
    view.apply(meta_pb2.WatchResponse(revision=2, changes=[change]))
    assert leaders.node_of(2) == "c"
    assert leaders.node_of(3) is None


def test_a_refusal_names_the_leader_or_the_next_is_asked(leaders: LeaderMap) -> None:
    """A refusal without a name moves on to the next replica, round and round."""
    leaders.refused(GROUP, "a", "c")
    assert leaders.node_of(GROUP) == "c"
    seen = []
    for _ in range(4):
        asked = leaders.node_of(GROUP)
        assert asked is not None
        leaders.refused(GROUP, asked, "")
        seen.append(leaders.node_of(GROUP))
    assert seen == ["a", "b", "c", "a"]


def test_a_leader_that_is_not_ready_keeps_its_calls(leaders: LeaderMap) -> None:
    """A refusal that names the one who refuses means: soon, and here."""
    leaders.refused(GROUP, "a", "a")
    assert leaders.node_of(GROUP) == "a"


def test_a_late_refusal_changes_nothing(leaders: LeaderMap) -> None:
    """A refusal of an earlier node does not overrule what was learned since."""
    leaders.refused(GROUP, "a", "c")
    leaders.refused(GROUP, "a", "")
    assert leaders.node_of(GROUP) == "c"


def test_a_silent_node_is_not_believed_in_for_a_while(
    leaders: LeaderMap, clock: ManualClock
) -> None:
    """Followers name a dead leader until they elect; the third replica is asked as well."""
    leaders.failed(GROUP, "a", UNAVAILABLE)
    assert leaders.node_of(GROUP) == "b"
    leaders.refused(GROUP, "b", "a")
    assert leaders.node_of(GROUP) == "c"
    clock.advance(0.6)
    leaders.refused(GROUP, "c", "a")
    assert leaders.node_of(GROUP) == "a"


def test_an_unreachable_node_is_left_for_all_its_raft_groups(leaders: LeaderMap) -> None:
    """A refused connection tells of the node, a slow answer of one raft group only."""
    leaders.leads("a", (GROUP, 2))
    leaders.failed(GROUP, "a", DEADLINE_EXCEEDED)
    assert [leaders.node_of(GROUP), leaders.node_of(2)] == ["b", "a"]
    leaders.failed(2, "a", OVERLOADED)
    assert leaders.node_of(2) == "a"
    leaders.failed(GROUP, "a", UNAVAILABLE)
    assert [leaders.node_of(GROUP), leaders.node_of(2)] == ["b", "b"]


def test_what_a_node_says_of_itself_counts_at_once(leaders: LeaderMap) -> None:
    """Listeners hear of it; who was asked before does not matter."""
    heard: list[tuple[int, str]] = []
    leaders.on_leader(lambda raft_group, node: heard.append((raft_group, node)))
    leaders.leads("c", (GROUP,))
    assert leaders.node_of(GROUP) == leaders.leader_of(GROUP) == "c"
    assert heard == [(GROUP, "c")]
    leaders.leads("c", ())
    assert leaders.node_of(GROUP) == "a"
    assert leaders.leader_of(GROUP) == ""


def test_an_old_leader_does_not_win_by_repeating_itself(leaders: LeaderMap) -> None:
    """A node that was cut off still lists what another one leads since."""
    leaders.leads("a", (GROUP,))
    leaders.leads("b", (GROUP,))
    leaders.leads("a", (GROUP, 2))
    assert leaders.node_of(GROUP) == "b"
    assert leaders.node_of(2) == "a"


def test_a_claim_that_was_refused_is_void(leaders: LeaderMap) -> None:
    """Else two replicas would send a call to and fro and the third were never asked."""
    leaders.leads("a", (GROUP,))
    leaders.refused(GROUP, "a", "")
    assert leaders.node_of(GROUP) == "b"
    leaders.refused(GROUP, "b", "")
    assert leaders.node_of(GROUP) == "c"


def test_a_lost_watch_makes_its_leaders_unknown(leaders: LeaderMap) -> None:
    """The next replica is asked at once, unless another node said that it leads."""
    leaders.leads("a", (GROUP, 2))
    leaders.lost("a")
    assert [leaders.node_of(GROUP), leaders.node_of(2)] == ["b", "b"]
    leaders.leads("c", (2,))
    leaders.lost("b")
    assert [leaders.node_of(GROUP), leaders.node_of(2)] == ["c", "c"]


def test_a_down_node_is_asked_last(view: MetadataView, leaders: LeaderMap) -> None:
    """Silence of a node that is down costs a try; somebody else is asked first."""
    down = meta_pb2.Node(
        node_id="b", kind=meta_pb2.NODE_KIND_STORAGE, state=meta_pb2.NODE_STATE_DOWN
    )
    view.apply(meta_pb2.WatchResponse(revision=2, changes=[meta_pb2.Change(node=down)]))
    leaders.refused(GROUP, "a", "")
    assert leaders.node_of(GROUP) == "c"


async def test_a_change_of_leader_can_be_waited_for(leaders: LeaderMap) -> None:
    """The former leader's word does not count, the next one's does."""
    leaders.leads("a", (GROUP,))
    waiting = asyncio.ensure_future(leaders.wait_for_other(GROUP, "a", 5))
    await asyncio.sleep(0)
    assert not waiting.done()
    leaders.leads("b", (GROUP,))
    assert await waiting == "b"
    assert await leaders.wait_for_other(GROUP, "b", 0) == ""


async def test_who_waits_for_a_leader_in_vain_leaves_nothing(leaders: LeaderMap) -> None:
    """A raft group may have the same leader for months, and operators ask again and again."""
    leaders.leads("a", (GROUP,))
    for _ in range(3):
        assert await leaders.wait_for_other(GROUP, "a", 0) == ""
    gone = asyncio.ensure_future(leaders.wait_for_other(GROUP, "a", 60))
    other = asyncio.ensure_future(leaders.wait_for_other(GROUP, "a", 60))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert len(leaders._waiters[GROUP]) == 1
    leaders.leads("b", (GROUP,))
    assert await other == "b"
    assert not leaders._waiters
