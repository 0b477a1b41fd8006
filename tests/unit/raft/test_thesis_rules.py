"""One test per rule of the Raft thesis (Ongaro 2014); the numbers are its sections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata_raft import (
    Campaign,
    ChangeMembership,
    Configuration,
    Effects,
    Entry,
    EntryKind,
    EventRefused,
    ForgetLeader,
    HardState,
    MemoryLog,
    PeerUnreachable,
    Persisted,
    Propose,
    RaftOptions,
    RawNode,
    Read,
    Receive,
    ReplicaProgress,
    Role,
    StepDown,
)
from strata_raft.membership import Membership, encode_configuration
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from strata_raft.progress import Progress, ProgressState

THREE = Configuration(frozenset({1, 2, 3}))


def entry(index: int, term: int, text: str = "x") -> Entry:
    return Entry(term, index, EntryKind.NORMAL, (text.encode(),))


def replica(
    *terms: int, term: int = 0, vote: int = 0, configuration: Configuration = THREE
) -> RawNode:
    """Make replica 1 with a stored log that has entries of these terms."""
    stored = MemoryLog()
    stored.write([entry(index, entry_term) for index, entry_term in enumerate(terms, 1)])
    return RawNode(
        1,
        stored,
        Membership(configuration),
        election_timeout_ticks=lambda: 8,
        hard_state=HardState(term or max(terms, default=0), vote, 0),
    )


def persist(node: RawNode, effects: Effects) -> Effects:
    """Store what the effects want stored and say so."""
    stored = node._state.log._reader
    assert isinstance(stored, MemoryLog)
    stored.write(effects.entries)
    return node.step(Persisted(effects.sequence))


def elect(node: RawNode) -> Effects:
    """Let replica 1 win with the votes of 2; return the effects of becoming leader."""
    node.step(Campaign())
    node.step(Receive(VoteResponse(2, 1, node.term + 1, granted=True, pre_vote=True)))
    node.step(Persisted(1))
    return node.step(Receive(VoteResponse(2, 1, node.term, granted=True)))


def ask_vote(node: RawNode, request: VoteRequest) -> bool:
    effects = node.step(Receive(request))
    (answer,) = effects.messages + effects.messages_after_sync
    assert isinstance(answer, VoteResponse)
    return answer.granted


def test_3_3_a_later_term_makes_a_leader_follow() -> None:
    """A server that sees a later term adopts it and becomes follower."""
    node = replica()
    elect(node)
    effects = node.step(Receive(AppendResponse(2, 1, term=7, index=0, rejected=True)))
    assert (node.role, node.term) == (Role.FOLLOWER, 7)
    assert effects.hard_state == HardState(7, 0, 0)


def test_3_3_requests_of_earlier_terms_are_refused() -> None:
    """An old leader is told the term, and its entries are not taken."""
    node = replica(1, term=5)
    effects = node.step(Receive(AppendRequest(2, 1, 4, 1, 1, (entry(2, 4),), 0)))
    (answer,) = effects.messages_after_sync
    assert isinstance(answer, AppendResponse)
    assert (answer.term, answer.rejected) == (5, True)
    assert node.last_index == 1


def test_3_4_one_vote_per_term() -> None:
    """A server votes for the first candidate of a term, again only for the same one."""
    node = replica(1)
    assert ask_vote(node, VoteRequest(2, 1, term=2, last_index=1, last_term=1))
    assert not ask_vote(node, VoteRequest(3, 1, term=2, last_index=9, last_term=1))
    assert ask_vote(node, VoteRequest(2, 1, term=2, last_index=1, last_term=1))


def test_3_8_votes_survive_a_restart() -> None:
    """A vote leaves after it is durable, and a restarted server keeps to it."""
    node = replica(1)
    effects = node.step(Receive(VoteRequest(2, 1, term=2, last_index=1, last_term=1)))
    assert effects.hard_state == HardState(2, 2, 0)
    assert not effects.messages
    reborn = replica(1, term=2, vote=2)
    assert not ask_vote(reborn, VoteRequest(3, 1, term=2, last_index=9, last_term=1))


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (9, 1, False), (2, 2, False), (1, 3, True), (4, 2, True)],
)
def test_3_6_1_votes_only_for_logs_as_up_to_date(
    last_index: int, last_term: int, granted: bool
) -> None:
    """The later last term wins; with equal terms the longer log does."""
    node = replica(1, 2, 2)
    request = VoteRequest(2, 1, term=5, last_index=last_index, last_term=last_term)
    assert ask_vote(node, request) is granted


def test_3_4_a_candidate_yields_to_the_leader_of_its_term() -> None:
    """A candidate that hears a leader of the same term follows it."""
    node = replica()
    node.step(Campaign())
    node.step(Receive(VoteResponse(2, 1, 1, granted=True, pre_vote=True)))
    assert node.role is Role.CANDIDATE
    node.step(Receive(Heartbeat(3, 1, term=1, commit=0)))
    assert (node.role, node.leader_id) == (Role.FOLLOWER, 3)


def test_3_4_a_leader_begins_with_a_no_op_and_speaks_at_once() -> None:
    """The new leader's first requests carry its no-op to everyone."""
    node = replica(1)
    effects = elect(node)
    assert [(e.index, e.term, e.kind) for e in effects.entries] == [(2, 2, EntryKind.NO_OP)]
    assert {message.target for message in effects.messages} == {2, 3}


def test_3_5_a_gap_is_refused_with_a_hint() -> None:
    """A follower without the preceding entry refuses and says where its log may agree."""
    node = replica(1, 1, 2)
    effects = node.step(Receive(AppendRequest(2, 1, 5, 7, 4, (entry(8, 5),), 0)))
    (answer,) = effects.messages_after_sync
    assert isinstance(answer, AppendResponse)
    assert (answer.rejected, answer.index, answer.hint_index, answer.hint_term) == (True, 7, 3, 2)


def test_3_5_conflicting_entries_are_replaced() -> None:
    """The first entry with another term and all after it give way to the leader's."""
    node = replica(1, 1, 2, 2)
    effects = node.step(Receive(AppendRequest(2, 1, 5, 2, 1, (entry(3, 5),), 0)))
    assert effects.entries == (entry(3, 5),)
    assert node.last_index == 3


def test_3_5_a_delayed_request_does_not_shorten_the_log() -> None:
    """Entries that are there already are not truncated by an old request for them."""
    node = replica(1, 1, 1)
    effects = node.step(Receive(AppendRequest(2, 1, 1, 0, 0, (entry(1, 1),), 0)))
    assert not effects.entries
    assert node.last_index == 3


def test_3_5_commit_follows_only_what_was_confirmed() -> None:
    """A follower commits up to the last entry of the request, not to what it happens to hold."""
    node = replica(1, 1, 1)
    effects = node.step(Receive(AppendRequest(2, 1, 4, 1, 1, (), commit=3)))
    assert effects.commit_index == 1


def test_3_6_2_no_commit_of_earlier_terms_by_counting() -> None:
    """An entry of an earlier term on a majority is not committed until one of this term is."""
    node = replica(1, 1)
    persist(node, elect(node))
    effects = node.step(Receive(AppendResponse(2, 1, term=2, index=2)))
    assert effects.commit_index == 0
    effects = node.step(Receive(AppendResponse(2, 1, term=2, index=3)))
    assert effects.commit_index == 3


def test_3_8_a_follower_answers_after_its_sync() -> None:
    """An append response says that the entries are durable, so it waits until they are."""
    node = replica()
    effects = node.step(Receive(AppendRequest(2, 1, 1, 0, 0, (entry(1, 1),), 0)))
    assert not effects.messages
    assert effects.messages_after_sync == (AppendResponse(1, 2, 1, 1),)
    assert effects.must_sync()
    # Not for its new term alone: the next one brings nothing but entries.
    persist(node, effects)
    effects = node.step(Receive(AppendRequest(2, 1, 1, 1, 1, (entry(2, 1),), 0)))
    assert effects.hard_state is None
    assert not effects.messages
    assert effects.messages_after_sync == (AppendResponse(1, 2, 1, 2),)


def test_10_2_1_the_leader_counts_itself_only_when_durable() -> None:
    """Replication and the leader's sync run in parallel; either majority commits."""
    node = replica()
    effects = elect(node)
    assert node.step(Receive(AppendResponse(2, 1, 1, 1))).commit_index == 0
    assert persist(node, effects).commit_index == 1
    effects = node.step(Propose(((b"a",),)))
    node.step(Receive(AppendResponse(2, 1, 1, 2)))
    effects = node.step(Receive(AppendResponse(3, 1, 1, 2)))
    assert (effects.commit_index, effects.ready_index) == (2, 1)


def test_3_10_a_transfer_target_campaigns_at_once() -> None:
    """`TimeoutNow` skips wait and pre-vote, and its requests pass a fresh leader's lease."""
    node = replica(1)
    node.step(Receive(Heartbeat(2, 1, term=1, commit=0)))
    effects = node.step(Receive(TimeoutNow(2, 1, term=1)))
    assert node.role is Role.CANDIDATE
    requests = effects.messages_after_sync
    assert all(isinstance(message, VoteRequest) and message.transfer for message in requests)
    other = replica(1)
    other.step(Receive(Heartbeat(2, 1, term=1, commit=0)))
    assert ask_vote(other, VoteRequest(3, 1, 2, last_index=1, last_term=1, transfer=True))


def test_4_2_3_a_fresh_leader_is_not_deposed() -> None:
    """Within an election timeout of hearing the leader, vote requests are ignored."""
    node = replica(1)
    node.step(Receive(Heartbeat(2, 1, term=1, commit=0)))
    effects = node.step(Receive(VoteRequest(3, 1, term=9, last_index=9, last_term=1)))
    assert not effects.messages + effects.messages_after_sync
    assert node.term == 1


def test_4_2_2_a_replica_that_is_left_out_may_campaign_until_that_is_committed() -> None:
    """Its log may be the only one that can win, and it does not count its own vote."""
    final = Configuration(frozenset({2, 3}))
    stored = MemoryLog()
    stored.write([entry(1, 1)])
    node = RawNode(
        1,
        stored,
        Membership(THREE, [(1, final)]),
        election_timeout_ticks=lambda: 8,
        hard_state=HardState(1, 0, 0),
    )
    roles = []
    for event in (
        Campaign(),
        Receive(VoteResponse(2, 1, 2, granted=True, pre_vote=True)),
        Receive(VoteResponse(3, 1, 2, granted=True, pre_vote=True)),
    ):
        node.step(event)
        roles.append(node.role)
    assert roles == [Role.PRE_CANDIDATE, Role.PRE_CANDIDATE, Role.CANDIDATE]


def test_4_3_one_membership_change_at_a_time() -> None:
    """A change is refused until the last one and the leader's no-op are committed."""
    node = replica()
    effects = elect(node)
    with pytest.raises(EventRefused, match="not committed"):
        node.step(ChangeMembership(frozenset({1, 2})))
    persist(node, effects)
    node.step(Receive(AppendResponse(2, 1, 1, 1)))
    node.step(ChangeMembership(frozenset({1, 2})))
    assert node.configuration.is_joint()
    with pytest.raises(EventRefused, match="not committed"):
        node.step(ChangeMembership(frozenset({1})))


def test_4_1_a_configuration_goes_with_its_entry() -> None:
    """It is in force from its append on, and no more when another leader replaces the entry."""
    node = replica(1)
    five = Configuration(frozenset({1, 2, 3, 4, 5}))
    change = Entry(1, 2, EntryKind.CONFIGURATION, encode_configuration(five))
    node.step(Receive(AppendRequest(2, 1, 1, 1, 1, (change,), 1)))
    assert (node.configuration, node.configuration_index) == (five, 2)
    node.step(Receive(AppendRequest(3, 1, 2, 1, 1, (entry(2, 2),), 1)))
    assert (node.configuration, node.configuration_index) == (THREE, 0)


def test_6_4_reads_wait_for_a_majority_of_a_later_round() -> None:
    """A read is answered only after heartbeats that left after it were answered."""
    node = replica()
    persist(node, elect(node))
    node.step(Receive(AppendResponse(2, 1, 1, 1)))
    effects = node.step(Read(context=5))
    assert not effects.reads
    beat = next(message for message in effects.messages if isinstance(message, Heartbeat))
    stale = node.step(Receive(HeartbeatResponse(2, 1, 1, context=beat.context - 1)))
    assert not stale.reads
    fresh = node.step(Receive(HeartbeatResponse(2, 1, 1, context=beat.context)))
    assert [(read.context, read.index) for read in fresh.reads] == [(5, 1)]
    # A follower that answered an earlier round may follow somebody else by now.
    assert not node.step(Read(context=6)).reads
    again = node.step(Receive(HeartbeatResponse(2, 1, 1, context=beat.context)))
    assert not again.reads
    later = node.step(Receive(HeartbeatResponse(2, 1, 1, context=beat.context + 1)))
    assert [(read.context, read.index) for read in later.reads] == [(6, 1)]


def test_6_4_reads_wait_for_an_entry_of_the_term() -> None:
    """Before its no-op is committed a leader does not know the commit index, so reads wait."""
    node = replica(configuration=Configuration(frozenset({1})))
    effects = node.step(Campaign())
    assert not node.step(Read(context=1)).reads
    assert [read.index for read in persist(node, effects).reads] == [1]


def test_9_6_a_pre_vote_changes_nothing() -> None:
    """Asking or answering a pre-vote neither raises a term nor uses a vote."""
    node = replica(1)
    effects = node.step(Receive(VoteRequest(2, 1, 2, last_index=1, last_term=1, pre_vote=True)))
    assert (node.term, effects.hard_state) == (1, None)
    effects = node.step(Campaign())
    assert (node.role, node.term, effects.hard_state) == (Role.PRE_CANDIDATE, 1, None)


def test_rule_8_messages_to_another_replica_id_are_ignored() -> None:
    """A message for an earlier life of a node changes nothing."""
    node = replica(1)
    effects = node.step(Receive(VoteRequest(2, 99, term=7, last_index=9, last_term=6)))
    assert node.term == 1
    assert not effects.messages + effects.messages_after_sync


def test_4_2_3_a_leader_known_to_be_gone_protects_nobody() -> None:
    """After `ForgetLeader` a vote is given that a fresh leader's lease refused, once per term."""
    node = replica(1, term=1)
    node.step(Receive(Heartbeat(2, 1, 1, commit=1)))
    asked = VoteRequest(3, 1, 2, last_index=1, last_term=1, pre_vote=True)
    assert not any(node.step(Receive(asked))[:5:4])
    effects = node.step(ForgetLeader())
    assert effects.role_change is not None
    assert (effects.role_change.term, effects.role_change.leader_id) == (1, 0)
    assert ask_vote(node, asked)
    assert node.term == 1
    node.step(Receive(Heartbeat(2, 1, 1, commit=1)))
    assert node.leader_id == 2, "a leader that stands is known again"


def test_3_10_a_leader_that_steps_down_names_its_successor() -> None:
    """It follows at once, and the named voter is told to campaign; anybody else is not."""
    node = replica()
    persist(node, elect(node))
    effects = node.step(StepDown(successor=3))
    assert node.role is Role.FOLLOWER
    assert TimeoutNow(1, 3, node.term) in effects.messages
    with pytest.raises(EventRefused):
        node.step(StepDown())
    node = replica()
    persist(node, elect(node))
    assert not any(isinstance(m, TimeoutNow) for m in node.step(StepDown(9)).messages)


def test_4_2_2_a_leader_without_a_vote_hands_over_when_it_is_out() -> None:
    """Once the configuration without it is committed the most advanced voter campaigns."""
    node = replica()
    persist(node, elect(node))
    for source in (2, 3):
        node.step(Receive(AppendResponse(source, 1, 1, 1)))
    persist(node, node.step(ChangeMembership(frozenset({2, 3}))))
    for source in (2, 3):
        effects = node.step(Receive(AppendResponse(source, 1, 1, 2)))
    assert node.configuration == Configuration(frozenset({2, 3}))
    assert node.configuration_index == 3
    persist(node, effects)
    node.step(Receive(AppendResponse(2, 1, 1, 3)))
    effects = node.step(Receive(AppendResponse(3, 1, 1, 3)))
    assert node.role is Role.LEARNER
    assert [m.target for m in effects.messages if isinstance(m, TimeoutNow)] == [3]


def test_7_an_older_snapshot_is_enough_if_the_log_goes_on_from_it() -> None:
    """Under load each offer is newer than what the follower installs; replication goes on."""
    progress = Progress(next_index=1, options=RaftOptions())
    progress.become_snapshot(100)
    assert progress.accepted(90, first_index=120)
    assert progress.state is ProgressState.SNAPSHOT
    assert progress.accepted(95, first_index=80)
    assert (progress.state, progress.next) == (ProgressState.REPLICATE, 96)


def test_rule_8_a_truncated_log_votes_as_if_it_were_whole() -> None:
    """Entries that were acknowledged and then truncated bind: vote, but not for less."""
    node = RawNode(
        1,
        MemoryLog(),
        Membership(THREE),
        election_timeout_ticks=lambda: 8,
        hard_state=HardState(4, 0, 0),
        floor=(3, 50),
    )
    with pytest.raises(EventRefused, match="not a voter"):
        node.step(Campaign())
    assert node.role is Role.LEARNER
    assert not ask_vote(node, VoteRequest(2, 1, 5, last_index=49, last_term=3))
    assert not ask_vote(node, VoteRequest(2, 1, 6, last_index=90, last_term=2))
    assert ask_vote(node, VoteRequest(3, 1, 7, last_index=50, last_term=3))


def test_rule_8_a_log_that_reached_its_floor_is_whole_again() -> None:
    """With the floor's entry, or later ones of a later term, the replica campaigns like any."""
    stored = MemoryLog()
    stored.write([entry(1, 2), entry(2, 3)])
    for floor, may_campaign in (((3, 2), True), ((2, 90), True), ((3, 3), False)):
        node = RawNode(1, stored, Membership(THREE), election_timeout_ticks=lambda: 8, floor=floor)
        assert (node.role is Role.FOLLOWER) is may_campaign


def test_a_replica_without_configuration_learns_it_from_its_leader() -> None:
    """It follows as a learner; the entry that names it gives it its part, at that index."""
    node = RawNode(
        4, MemoryLog(), Membership(Configuration(frozenset())), election_timeout_ticks=lambda: 8
    )
    assert node.role.name == "LEARNER"
    payload = encode_configuration(Configuration(frozenset({1, 4})))
    entries = (entry(1, 1), Entry(1, 2, EntryKind.CONFIGURATION, payload))
    effects = node.step(Receive(AppendRequest(1, 4, 1, 0, 0, entries, commit=0)))
    persist(node, effects)
    assert node.role.name == "FOLLOWER"
    assert (node.configuration.voters, node.configuration_index) == (frozenset({1, 4}), 2)


def test_progress_tells_who_is_where() -> None:
    """Match, state, recent signs of life and who only learns, for each other replica."""
    node = replica(configuration=Configuration(frozenset({1, 2}), frozenset({3})))
    assert node.progress() == ()
    persist(node, elect(node))
    node.step(Receive(AppendResponse(2, 1, 1, 1)))
    told = {each.replica_id: each for each in node.progress()}
    assert told[2] == ReplicaProgress(2, 1, ProgressState.REPLICATE, True, False)
    assert (told[3].match_index, told[3].state, told[3].is_learner) == (0, "probe", True)


def test_9_6_who_has_rows_to_rebuild_is_refused_by_who_has_not() -> None:
    """It would be silent as a leader (rule 1); the fit one campaigns at once in its place."""
    node = replica(1, 1, 1)
    node.note_applied(3)
    node.note_due(3)
    behind = VoteRequest(2, 1, 2, last_index=3, last_term=1, pre_vote=True, applied=1)
    assert not ask_vote(node, behind)
    assert ask_vote(node, replace(behind, source=3, applied=3))
    effects = node.tick()
    assert node.role is Role.PRE_CANDIDATE
    assert {message.target for message in effects.messages} == {2, 3}
    assert {message.applied for message in effects.messages} == {3}  # type: ignore[union-attr]


def test_9_6_somebody_leads_though_nobody_is_fit() -> None:
    """A refusal for the sake of the rows is never for good, and never of a longer log."""
    node = replica(1, 1, 1)
    node.note_applied(3)
    node.note_due(3)
    behind = VoteRequest(2, 1, 2, last_index=3, last_term=1, pre_vote=True, applied=1)
    assert ask_vote(node, replace(behind, last_index=4))
    assert [ask_vote(node, behind) for _ in range(5)] == [False, False, False, True, True]
    node.step(Receive(Heartbeat(3, 1, 1, commit=3)))
    for _ in range(6):
        node.tick()
    assert not ask_vote(node, behind)
    not_now = replica(1, 1, 1)
    not_now.note_applied(3)
    not_now.note_due(0)
    assert ask_vote(not_now, behind)
    as_bad = replica(1, 1, 1)
    as_bad.note_applied(1)
    as_bad.note_due(3)
    assert ask_vote(as_bad, behind)


def test_followers_tell_the_leader_what_they_have_applied() -> None:
    """With every heartbeat; what a follower said before it was probed again counts no more."""
    node = replica(1)
    node.note_applied(7)
    (answer,) = node.step(Receive(Heartbeat(2, 1, 1, commit=0))).messages
    assert answer == HeartbeatResponse(1, 2, 1, 0, applied=7)
    leader = replica(1)
    persist(leader, elect(leader))
    leader.step(Receive(AppendResponse(2, 1, leader.term, leader.last_index)))
    leader.step(Receive(HeartbeatResponse(2, 1, leader.term, 0, applied=1)))
    assert {p.replica_id: p.applied_index for p in leader.progress()} == {2: 1, 3: -1}
    leader.step(PeerUnreachable(2))
    assert {p.replica_id: p.applied_index for p in leader.progress()} == {2: -1, 3: -1}
