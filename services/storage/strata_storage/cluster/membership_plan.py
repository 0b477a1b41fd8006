"""The next step of a raft group towards the replicas that the metadata row wants (pure).

`next_step` compares the desired state with the actual one, and names one step; the reconciler
carries it out and asks again. Nothing is remembered between two questions, so a new leader
continues where the old one stopped, and a row that changes half-way is simply followed from there.

Every step keeps these rules:
- a replica is made a voter only when it is caught up, so a change never waits for a long copy;
- the new voters have a majority of caught-up replicas, or the step waits;
- as long as wanted voters are missing, unwanted ones stay;
- the leader never votes itself out: it hands over first, and its successor removes it;
- no replica becomes leader while it has entries left to apply: it would be silent meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Desired:
    """Members that the metadata wants in a raft group, by replica id.

    Attributes:
        voters: replicas that should vote.
        learners: replicas that should only receive entries.
        preferred_leader: the replica that should lead; 0: any.
        unfit: replicas that should not lead: their nodes are taken out of service, their clocks are
            off, or their disks full.
    """

    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    preferred_leader: int = 0
    unfit: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Standing:
    """The leader's knowledge of its raft group.

    Attributes:
        leader: this replica.
        voters, learners: the configuration in force.
        changing: it is joint, or not committed: no step is possible.
        caught_up: replicas that hold nearly everything and were heard lately, the leader too.
        applied: those of them that have also applied it, so that they could lead at once.
    """

    leader: int
    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    changing: bool = False
    caught_up: frozenset[int] = field(default_factory=frozenset)
    applied: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Something must happen first; `reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class ChangeTo:
    """Change the membership to these voters and learners."""

    voters: frozenset[int]
    learners: frozenset[int]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give the leadership to this voter."""

    target: int


Step = Settled | Wait | ChangeTo | HandOver


def next_step(desired: Desired, standing: Standing) -> Step:
    """Return what the leader does next.

    Args:
        desired: the wanted members; without voters nothing changes (the row is not known yet).
        standing: what is.
    """
    if standing.changing:
        return Wait("a membership change is under way")
    if not desired.voters:
        return Settled()
    hand_over = _hand_over(desired, standing)
    if hand_over is not None:
        return hand_over
    missing = (desired.voters | desired.learners) - standing.voters - standing.learners
    if missing:
        return ChangeTo(standing.voters, standing.learners | missing)
    return _replace(desired, standing)


def _hand_over(desired: Desired, standing: Standing) -> HandOver | None:
    """Follow the wish for another leader as far as somebody can take over now."""
    able = (standing.voters & desired.voters & standing.applied) - {standing.leader}
    fit = able - desired.unfit
    if desired.preferred_leader in fit:
        return HandOver(desired.preferred_leader)
    if standing.leader not in desired.voters:
        # It must go; an unfit successor is better than none.
        fit = fit or able
    elif standing.leader not in desired.unfit:
        return None
    return HandOver(min(fit)) if fit else None


def _replace(desired: Desired, standing: Standing) -> Step:
    """Promote learners that have caught up, each in the place of an unwanted voter."""
    wanted = desired.voters & (standing.voters | standing.caught_up)
    voters = wanted | _substitutes(desired, standing, len(desired.voters) - len(wanted))
    voters |= {standing.leader}
    learners = (desired.learners | desired.voters) - voters
    if voters == standing.voters and learners == standing.learners:
        return _why_not_settled(desired, standing)
    healthy = len(voters & (standing.caught_up | {standing.leader}))
    if healthy <= len(voters) // 2:
        return Wait(f"only {healthy} of the {len(voters)} next voters are caught up")
    return ChangeTo(voters, learners)


def _substitutes(desired: Desired, standing: Standing, count: int) -> frozenset[int]:
    """Choose unwanted voters that stay while wanted ones are missing: the healthy ones first."""
    unwanted = standing.voters - desired.voters
    return frozenset(_healthy_first(unwanted, standing)[: max(count, 0)])


def _healthy_first(replicas: Collection[int], standing: Standing) -> list[int]:
    def rank(replica_id: int) -> tuple[bool, bool, int]:
        is_leader = replica_id == standing.leader
        return not is_leader, replica_id not in standing.caught_up, replica_id

    return sorted(replicas, key=rank)


def _why_not_settled(desired: Desired, standing: Standing) -> Step:
    behind = desired.voters - standing.voters
    if behind:
        return Wait(f"replicas {sorted(behind)} are catching up")
    if standing.leader not in desired.voters:
        return Wait("no wanted voter is ready to take the leadership over")
    if desired.preferred_leader not in (0, standing.leader):
        return Wait(f"replica {desired.preferred_leader} cannot take the leadership over yet")
    if standing.leader in desired.unfit:
        return Wait("no other voter can take the leadership over")
    return Settled()
