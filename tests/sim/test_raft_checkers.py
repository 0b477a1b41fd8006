"""The simulation is worth something: it finds mistakes that are put in on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_raft import Role, leader, log, rawnode, state
from strata_raft.quorum import quorum_index
from strata_sim.invariants.violation import Violation
from strata_sim.raft_cluster import Faults, RaftCluster


def votes_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.ReplicaState, "send_after_sync", state.ReplicaState.send)
    original = state.ReplicaState.take_effects

    def take_effects(self: state.ReplicaState) -> object:
        effects = original(self)
        return effects._replace(
            messages=effects.messages + effects.messages_after_sync, messages_after_sync=()
        )

    patch.setattr(state.ReplicaState, "take_effects", take_effects)


def votes_for_any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.RaftLog, "is_at_least", lambda self, last_index, last_term: True)


def counts_unsynced_entries(patch: pytest.MonkeyPatch) -> None:
    def quorum(self: leader.Leader) -> int:
        match = {replica_id: progress.match for replica_id, progress in self.progress.items()}
        match[self._state.replica_id] = self._state.log.last_index
        return quorum_index(self._state.membership.current, match)

    patch.setattr(leader.Leader, "_quorum_index", quorum)


def serves_reads_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "is_quorum", lambda configuration, present: True)
    patch.setattr("strata_raft.read_index.is_quorum", lambda configuration, present: True)


def forgets_its_vote(patch: pytest.MonkeyPatch) -> None:
    original = rawnode.RawNode._become

    def become(self: rawnode.RawNode, role: object, *, transfer: bool = False) -> None:
        if role in (Role.FOLLOWER, Role.PRE_CANDIDATE):
            self._state.vote = 0
        original(self, role, transfer=transfer)  # type: ignore[arg-type]

    patch.setattr(rawnode.RawNode, "_become", become)


@pytest.mark.parametrize(
    ("mistake", "invariant"),
    [
        (votes_before_sync, "safety|never lost|complete|matching"),
        (votes_for_any_log, "complete|never lost|commit"),
        (counts_unsynced_entries, "complete|never lost|commit"),
        (serves_reads_alone, "reads see commits"),
        (forgets_its_vote, "election safety"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None],
    invariant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 200 seeds an invariant, and the right one, fails."""
    mistake(monkeypatch)
    faults = Faults(membership=0, sync=10, read=10, loss=0.1, crash=1, restart=4)
    with pytest.raises(Violation, match=invariant) as violation:
        for seed in range(200):
            RaftCluster(seed, voters=3, faults=faults).run(3000)
    print(violation.value)
