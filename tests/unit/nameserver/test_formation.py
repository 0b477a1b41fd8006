"""How nameservers find each other, and who takes part afterwards."""

from __future__ import annotations

import random
from unittest.mock import AsyncMock, Mock

import pytest

from strata.meta.v1 import meta_pb2
from strata_nameserver.membership.formation import Formation, FormationError, decide_formation
from strata_nameserver.membership.members import MemberKeeper, MembershipStep, next_membership
from strata_nameserver.membership.peers import PeerDirectory
from strata_raft import Configuration


def peer(replica_id: int, formation: Formation | None = None) -> meta_pb2.NameserverPeer:
    return meta_pb2.NameserverPeer(
        node_id=f"n{replica_id}",
        replica_id=replica_id,
        endpoint=f"host-{replica_id}:9877",
        cluster_id=formation.cluster_id if formation else "",
        initial_replica_ids=formation.replica_ids if formation else (),
    )


def test_all_decide_the_same_once_all_answer() -> None:
    """Every peer decides the same, asked in any order; before the last answer none decides."""
    peers = [peer(30), peer(10), peer(20)]
    decisions = {decide_formation(own, [p for p in peers if p is not own]) for own in peers}

    assert len(decisions) == 1
    assert decisions.pop().replica_ids == (10, 20, 30)  # type: ignore[union-attr]
    assert decide_formation(peers[0], [peers[1], None]) is None


def test_a_single_nameserver_forms_alone() -> None:
    """There is nobody to wait for."""
    formation = decide_formation(peer(7), [])

    assert formation is not None and formation.replica_ids == (7,)


def test_a_formed_cluster_is_taken_over() -> None:
    """By one of its first members and by a stranger alike, whoever else answers or not."""
    formation = Formation("cluster", (1, 2, 3))

    assert decide_formation(peer(3), [peer(1, formation), None]) == formation
    assert decide_formation(peer(9), [peer(1, formation), peer(2)]) == formation


def test_what_does_not_belong_together_is_an_error() -> None:
    """Two clusters in one list, or a data folder that was copied."""
    with pytest.raises(FormationError, match="different clusters"):
        decide_formation(peer(1), [peer(2, Formation("a", (2,))), peer(3, Formation("b", (3,)))])
    with pytest.raises(FormationError, match="the same replica id"):
        decide_formation(peer(1), [peer(2), peer(2)])


def step(
    voters: set[int],
    answering: dict[str, int],
    *,
    learners: set[int] | None = None,
    outgoing: set[int] | None = None,
    down: set[int] | None = None,
    configured: str = "",
    caught_up: bool = True,
) -> MembershipStep | None:
    configuration = Configuration(
        frozenset(voters), frozenset(learners or ()), frozenset(outgoing or ())
    )
    endpoints = {1: "a", 2: "b", 3: "c", 4: "c", 5: "d"}
    return next_membership(
        configuration,
        configured or list(answering),
        answering,
        endpoints,
        frozenset(down or ()),
        lambda _: caught_up,
    )


def test_an_emptied_nameserver_replaces_its_old_self() -> None:
    """First a learner, then, caught up, a voter in the place of the one at its address."""
    answering = {"a": 1, "b": 2, "c": 4}
    joining = step({1, 2, 3}, answering)
    assert joining is not None
    assert joining.voters == {1, 2, 3}
    assert joining.learners == {4}
    assert step({1, 2, 3}, answering, learners={4}, caught_up=False) is None
    replacing = step({1, 2, 3}, answering, learners={4})
    assert replacing is not None
    assert replacing.voters == {1, 2, 4}
    assert not replacing.learners
    assert step({1, 2, 4}, answering) is None


async def test_one_that_was_emptied_before_it_registered_is_replaced_too() -> None:
    """It has no row; that it answered at its address once is known."""
    again = peer(4)
    again.endpoint = peer(3).endpoint
    configuration = Configuration(frozenset({1, 2, 3}), frozenset({4}))
    change_membership = await keep(configuration, [peer(2), peer(3), again], [])

    change_membership.assert_awaited_once_with(frozenset({1, 2, 4}), frozenset())


async def keep(
    configuration: Configuration,
    answers: list[meta_pb2.NameserverPeer],
    down: list[meta_pb2.NameserverPeer],
) -> AsyncMock:
    """Let the first of three keep the members once; return how it changed the configuration."""
    change_membership = AsyncMock()
    replica = Mock(configuration=configuration, change_membership=change_membership)
    machine = Mock()
    machine.speculative.topology.nodes_of.return_value = [
        meta_pb2.Node(
            node_id=each.node_id,
            endpoints=[each.endpoint],
            metadata_replica_id=each.replica_id,
            state=meta_pb2.NODE_STATE_DOWN,
        )
        for each in down
    ]
    directory = PeerDirectory(
        peer(1), [f"host-{number}:9877" for number in (1, 2, 3)], Mock(), interval_s=1
    )
    for each in answers:
        directory.learned(each)
    await MemberKeeper(replica, machine, directory, forget_node=AsyncMock(), interval_s=1).step()
    return change_membership


async def test_one_that_starts_later_than_the_others_stays_a_voter() -> None:
    """After a power cut it is DOWN and has not answered the new leader yet: its place is its own.

    One at an address that is configured no more goes.
    """
    change_membership = await keep(Configuration(frozenset({1, 2, 3})), [peer(2)], [peer(3)])
    change_membership.assert_not_awaited()
    configuration = Configuration(frozenset({1, 2, 3, 4}))
    change_membership = await keep(configuration, [peer(2)], [peer(3), peer(4)])
    change_membership.assert_awaited_once_with(frozenset({1, 2, 3}), frozenset())


def test_a_new_address_adds_a_voter_and_a_lost_one_takes_it_away() -> None:
    """Growing needs no removal; one that no configuration names leaves when it is DOWN."""
    grown = step({1, 2, 3}, {"a": 1, "b": 2, "c": 3, "d": 5}, learners={5})
    assert grown is not None and grown.voters == {1, 2, 3, 5}
    shrinking = {"a": 1, "b": 2, "c": 3}
    assert step({1, 2, 3, 5}, shrinking) is None
    shrunk = step({1, 2, 3, 5}, shrinking, down={5})
    assert shrunk is not None and shrunk.voters == {1, 2, 3}


def test_a_silent_member_stays() -> None:
    """Not to answer is no reason to leave, nor is being DOWN at an address that is configured."""
    assert step({1, 2, 3}, {"a": 1, "b": 2, "c": 3}, down={3}) is None
    assert step({1, 2, 3}, {"a": 1, "b": 2}, down={3}, configured="abc") is None
    assert step({1, 2}, {"a": 1, "b": 2}, learners={3}, down={3}, configured="abc") is None
    assert step({1, 2, 3}, {"a": 1, "b": 2, "c": 4}, outgoing={1, 2, 3}) is None


def test_a_learner_goes_when_its_folder_is_emptied_again() -> None:
    """Another one answers at its address; the old voter there stays until that has caught up."""
    answering = {"a": 1, "b": 2, "c": 4}
    configuration = Configuration(frozenset({1, 2, 3}), frozenset({4, 32}))
    endpoints = {1: "a", 2: "b", 3: "c", 4: "c", 32: "c"}

    def step_of(configuration: Configuration, *, caught_up: bool) -> MembershipStep | None:
        return next_membership(
            configuration, "abc", answering, endpoints, frozenset({3, 32}), lambda _: caught_up
        )

    going = step_of(configuration, caught_up=False)
    assert going is not None
    assert set(going.voters) == {1, 2, 3}
    assert set(going.learners) == {4}
    assert going.reason == "4 answers at c instead of 32"
    assert step_of(Configuration(going.voters, going.learners), caught_up=False) is None
    later = step_of(Configuration(frozenset({1, 2, 4}), frozenset({32})), caught_up=True)
    assert later is not None
    assert set(later.voters) == {1, 2, 4}
    assert not later.learners
    twice = step_of(Configuration(frozenset({1, 2, 3, 4})), caught_up=True)
    assert twice is not None, "an old voter that was not known to be at the address goes, too"
    assert set(twice.voters) == {1, 2, 4}
    assert twice.reason == "3 was taken out"


def test_changes_never_lose_the_majority() -> None:
    """Random histories of emptied folders end with one voter per address, a change at a time.

    Some are emptied again before they have caught up.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    endpoints = {number: chr(ord("a") + number) for number in range(5)}
    configuration = Configuration(frozenset(range(5)))
    answering = {endpoint: number for number, endpoint in endpoints.items()}
    for replica_id in range(100, 140):
        endpoint = chooser.choice(sorted(answering))
        answering[endpoint] = replica_id
        endpoints[replica_id] = endpoint
        has_time = replica_id == 139 or chooser.random() < 0.5

        def caught_up(learner: int, has_time: bool = has_time) -> bool:
            return has_time

        for _ in range(10):
            chosen = next_membership(
                configuration, sorted(answering), answering, endpoints, frozenset(), caught_up
            )
            if chosen is None:
                break
            assert len(chosen.voters ^ configuration.voters) <= 2, f"seed {seed}"
            configuration = Configuration(chosen.voters, chosen.learners)
        late = set() if has_time else set(answering.values()) - configuration.voters
        assert configuration.learners == late, f"seed {seed}"
        assert len(configuration.voters) == len(answering), f"seed {seed}"
        assert has_time <= (configuration.voters == set(answering.values())), f"seed {seed}"
