"""The small parts of the core, each against its definition."""

from __future__ import annotations

import doctest
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strata_raft
from strata_raft import Configuration, Entry, EntryKind, MemoryLog, RaftOptions
from strata_raft.log import RaftLog
from strata_raft.membership import decode_configuration, encode_configuration
from strata_raft.progress import Progress, ProgressState
from strata_raft.quorum import VoteResult, quorum_index, vote_result

replica_ids = st.frozensets(st.integers(1, 9), min_size=1, max_size=5)
configurations = st.builds(
    Configuration, replica_ids, st.frozensets(st.integers(10, 19), max_size=3), replica_ids
)


def test_the_tutorial_runs() -> None:
    """The package's docstring does what it says."""
    assert doctest.testmod(strata_raft).failed == 0


@given(configurations, st.dictionaries(st.integers(1, 9), st.integers(0, 20)))
def test_quorum_index_is_what_both_majorities_hold(
    configuration: Configuration, match: dict[int, int]
) -> None:
    """The index is held by a majority of each set, and the next one is not."""

    def is_held(index: int) -> bool:
        return all(
            2 * sum(match.get(voter, 0) >= index for voter in voters) > len(voters)
            for voters in (configuration.voters, configuration.outgoing)
        )

    index = quorum_index(configuration, match)
    assert is_held(index)
    assert not is_held(index + 1)


@given(configurations)
def test_configurations_survive_their_encoding(configuration: Configuration) -> None:
    """Decoding gives what was encoded."""
    assert decode_configuration(encode_configuration(configuration)) == configuration


def test_broken_configurations_are_refused() -> None:
    """A payload of the wrong length is an error, not a guess."""
    (payload,) = encode_configuration(Configuration(frozenset({1, 2})))
    for broken in (b"", payload[:-1], payload + b"x"):
        with pytest.raises(ValueError, match="not a configuration"):
            decode_configuration((broken,))


def test_elections_of_three_voters() -> None:
    """Two grants win, two refusals lose, anything else is open."""
    configuration = Configuration(frozenset({1, 2, 3}))
    for answers in product((True, False, None), repeat=3):
        votes = {voter: answer for voter, answer in enumerate(answers, 1) if answer is not None}
        expected = VoteResult.PENDING
        if answers.count(True) >= 2:
            expected = VoteResult.WON
        elif answers.count(False) >= 2:
            expected = VoteResult.LOST
        assert vote_result(configuration, votes) is expected


def test_the_window_limits_requests_and_bytes() -> None:
    """Sending pauses at either limit; an answer frees what it covers."""
    progress = Progress(1, RaftOptions(max_inflight_requests=2, max_inflight_bytes=100))
    progress.accepted(0)
    assert progress.state is ProgressState.REPLICATE
    progress.sent(1, 10)
    assert not progress.is_paused()
    progress.sent(2, 10)
    assert progress.is_paused()
    progress.accepted(1)
    assert not progress.is_paused()
    progress.sent(3, 90)
    assert progress.is_paused()
    progress.accepted(3)
    assert (progress.match, progress.next, progress.is_paused()) == (3, 4, False)


def test_a_probe_goes_back_to_the_hint_and_not_below_match() -> None:
    """A refusal moves `next` to the hint; an out-of-date one is ignored."""
    progress = Progress(10, RaftOptions())
    progress.sent(9, 0)
    assert progress.is_paused()
    assert progress.rejected(9, retry_from=4)
    assert (progress.next, progress.is_paused()) == (5, False)
    assert not progress.rejected(9, retry_from=1)
    assert progress.next == 5


def test_a_follower_that_lost_what_it_confirmed_is_asked_from_there() -> None:
    """Its log was voided for a snapshot that did not come; an old refusal costs one question."""
    progress = Progress(1, RaftOptions())
    progress.become_replicate()
    progress.sent(9, 10)
    progress.accepted(9)
    assert not progress.rejected(9, retry_from=9)
    assert (progress.match, progress.state) == (9, ProgressState.REPLICATE)
    assert progress.rejected(9, retry_from=0)
    assert (progress.match, progress.next, progress.state) == (0, 1, ProgressState.PROBE)
    progress.sent(9, 10)
    progress.accepted(9)
    assert (progress.match, progress.state) == (9, ProgressState.REPLICATE)


def test_a_question_that_would_get_the_same_answer_is_not_repeated_at_once() -> None:
    """The next heartbeat asks again: two nodes do not keep each other busy."""
    progress = Progress(10, RaftOptions())
    progress.accepted(4)
    progress.become_probe()
    progress.sent(4, 0)
    assert not progress.rejected(4, retry_from=4)
    assert (progress.next, progress.is_paused()) == (5, False)


def _entry(index: int, term: int) -> Entry:
    return Entry(term, index, EntryKind.NORMAL)


def test_a_sync_of_entries_that_were_replaced_does_not_count() -> None:
    """Truncating during a sync takes the truncated entries out of what it makes durable."""
    stored = MemoryLog()
    log = RaftLog(stored, committed=0)
    log.append([_entry(1, 1), _entry(2, 1), _entry(3, 1)])
    first = log.take_unwritten()
    log.sync_started(1)
    log.truncate(2)
    log.append([_entry(2, 2)])
    second = log.take_unwritten()
    log.sync_started(2)
    stored.write(first)
    log.synced(1)
    assert (log.persisted, log.last_index, log.term(2)) == (1, 2, 2)
    stored.write(second)
    log.synced(2)
    assert (log.persisted, log.term(2), stored.last_index()) == (2, 2, 2)


def test_agreement_skips_whole_terms() -> None:
    """The next probe is the last index whose term the other side can have."""
    stored = MemoryLog()
    stored.write([_entry(index, term) for index, term in enumerate((1, 1, 3, 3, 3, 5), 1)])
    log = RaftLog(stored, committed=0)
    assert log.agreement(6, 4) == (5, 3)
    assert log.agreement(5, 2) == (2, 1)
    assert log.agreement(99, 9) == (6, 5)
    assert log.agreement(3, 0) == (0, 0)


@given(st.lists(st.integers(1, 60), max_size=20), st.integers(0, 100))
def test_batches_have_one_entry_or_fit(sizes: list[int], max_bytes: int) -> None:
    """`entries` gives at least one entry, then only what fits."""
    log = RaftLog(MemoryLog(), committed=0)
    if not sizes:
        assert log.entries(1, max_bytes) == ()
        return
    log.append([Entry(1, n, EntryKind.NORMAL, (bytes(size),)) for n, size in enumerate(sizes, 1)])
    chosen = log.entries(1, max_bytes)
    assert chosen
    assert len(chosen) == 1 or sum(sizes[: len(chosen)]) <= max_bytes
    assert len(chosen) == len(sizes) or sum(sizes[: len(chosen) + 1]) > max_bytes
