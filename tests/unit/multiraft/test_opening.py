"""Start of a replica: which logs and rows fit together, and which do not (rule 8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strata_multiraft import MultiRaftOptions, ReplicaSpec
from strata_multiraft.driver.opening import OpenedReplica, Opener
from strata_multiraft.replica.stored_log import no_offer
from strata_multiraft.replica.writes import as_frame, void_frame
from strata_raft import Campaign, Configuration, Entry, EntryKind, EventRefused, Role
from strata_raft.membership import encode_configuration
from strata_seglog.frames import hard_state_frame
from strata_sim.memory_commit_log import MemoryCommitLog
from strata_sim.rows_machine import Rows, RowsMachine

THREE = frozenset({1, 2, 3})


def log_of(indexes: Sequence[int], *, term: int = 2) -> MemoryCommitLog:
    """Return a log of replica 1 with a hard state and these entries."""
    log = MemoryCommitLog()
    log.write_and_sync([hard_state_frame(1, 9, 4, 3, 0)])
    for index in indexes:
        entry = Entry(term, index, EntryKind.NORMAL, (b"%d" % index,))
        log.write_and_sync([as_frame(1, 9, entry)])
    return log


def opened(log: MemoryCommitLog, rows: Rows | None = None) -> OpenedReplica:
    machine = RowsMachine(rows)
    opener = Opener(log, MultiRaftOptions(), lambda: 6)
    return opener.open(ReplicaSpec(9, 1, THREE), machine, machine, no_offer)


@pytest.mark.parametrize(
    ("indexes", "applied", "reason"),
    [
        ((1, 2, 3), 4, "applied index 4 is beyond the log's end 3"),
        ((5, 6), 3, "applied index 3, but the log begins at 5"),
        ((), 0, ""),
        ((), 7, ""),
        ((5, 6), 4, ""),
        ((5, 6), 5, ""),
        ((1, 2), 0, ""),
    ],
)
def test_log_and_rows_must_meet(indexes: Sequence[int], applied: int, reason: str) -> None:
    """A hole between rows and entries is damage; entries that were freed below rows are not."""
    found = opened(log_of(indexes), Rows(applied, 2 if applied else 0))
    assert found.damage.endswith(reason)
    assert bool(found.damage) is bool(reason)


def test_rows_without_any_log_are_damaged() -> None:
    """A replica that the log has never seen cannot have applied anything."""
    found = opened(MemoryCommitLog(), Rows(7, 2))
    assert "applied index 7 is beyond the log's end 0" in found.damage


def test_a_log_whose_entries_are_all_freed_goes_on_after_the_rows() -> None:
    """Index and term come from the rows, so that the next entry fits and a vote is fair."""
    stored = opened(log_of(()), Rows(7, 2)).stored
    assert (stored.first_index(), stored.last_index()) == (8, 7)
    assert (stored.term(7), stored.snapshot()) == (2, None)


def test_the_term_before_the_first_entry_comes_from_the_rows() -> None:
    """A follower that ends where the log begins needs no snapshot."""
    stored = opened(log_of((5, 6)), Rows(4, 1)).stored
    assert (stored.term(4), stored.term(5)) == (1, 2)


def test_configurations_come_from_rows_and_later_entries() -> None:
    """The row holds what is applied; entries above it are in force though not yet committed."""
    log = log_of((1, 2))
    for index, voters in ((3, {1, 2}), (4, {1})):
        payload = encode_configuration(Configuration(frozenset(voters)))
        log.write_and_sync([as_frame(1, 9, Entry(2, index, EntryKind.CONFIGURATION, payload))])
    node = opened(log).node
    assert (node.configuration.voters, node.configuration_index) == (frozenset({1}), 4)
    row = (3, Configuration(frozenset({1, 2})))
    node = opened(log, Rows(3, 2, row)).node
    assert (node.configuration.voters, node.configuration_index) == (frozenset({1}), 4)
    log.trim(1, 4)
    node = opened(log, Rows(4, 2, (4, Configuration(frozenset({5}))))).node
    assert node.configuration.voters == frozenset({5})


def test_an_interrupted_install_starts_empty_and_bound() -> None:
    """Whether its log was truncated already or not, it answers for what it had acknowledged."""
    before_void = opened(log_of((1, 2, 3)), Rows(is_installing=True))
    log = log_of((1, 2, 3))
    log.write_and_sync([void_frame(1, 9, (3, 50))])
    log.write_and_sync([as_frame(1, 9, Entry(3, 40, EntryKind.NORMAL, (b"x",)))])
    after_void = opened(log, Rows(is_installing=True))
    for found, floor in ((before_void, (2, 3)), (after_void, (3, 50))):
        assert found.is_interrupted
        assert found.floor == floor
        assert (found.node.term, found.node.last_index) == (4, 0)
        assert found.node.role is Role.LEARNER
        with pytest.raises(EventRefused):
            found.node.step(Campaign())


def test_a_removed_replica_is_not_opened() -> None:
    """Its id has ended on this node (rule 9)."""
    log = log_of((1,))
    log._removed.add(1)
    with pytest.raises(ValueError, match="removed"):
        opened(log)
