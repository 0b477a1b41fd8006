"""Arithmetic of majorities, single and joint, over replica ids and numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from strata_raft.types import Configuration


class VoteResult(Enum):
    """State of an election."""

    PENDING = 1
    WON = 2
    LOST = 3


def quorum_index(configuration: Configuration, match: Mapping[int, int]) -> int:
    """Return the highest index that a quorum holds durably; a replica not in `match` holds 0."""
    index = _majority_index(configuration.voters, match)
    if configuration.outgoing:
        return min(index, _majority_index(configuration.outgoing, match))
    return index


def vote_result(configuration: Configuration, votes: Mapping[int, bool]) -> VoteResult:
    """Return how an election stands with these answers; a joint one needs both majorities."""
    results = [_majority_vote(configuration.voters, votes)]
    if configuration.outgoing:
        results.append(_majority_vote(configuration.outgoing, votes))
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON


def is_quorum(configuration: Configuration, present: Collection[int]) -> bool:
    """Tell whether these replicas are a quorum."""
    return vote_result(configuration, dict.fromkeys(present, True)) is VoteResult.WON


def _majority_index(voters: frozenset[int], match: Mapping[int, int]) -> int:
    descending = sorted((match.get(voter, 0) for voter in voters), reverse=True)
    return descending[len(descending) // 2]


def _majority_vote(voters: frozenset[int], votes: Mapping[int, bool]) -> VoteResult:
    granted = sum(votes.get(voter, False) for voter in voters)
    refused = sum(not votes.get(voter, True) for voter in voters)
    majority = len(voters) // 2 + 1
    if granted >= majority:
        return VoteResult.WON
    return VoteResult.LOST if refused > len(voters) - majority else VoteResult.PENDING
