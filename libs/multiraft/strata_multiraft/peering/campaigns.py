"""Campaigns of raft groups whose leader's node is gone: the survivors run one after another.

A campaign is forgotten when its raft group has another leader or a later term once it is due.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from strata_multiraft.peering.peering_options import LivenessOptions
from strata_multiraft.peering.quiesced import mix
from strata_multiraft.replica.replica import Replica
from strata_raft import NO_REPLICA


class Campaigns:
    """The campaigns to come on one node, earliest first. It never awaits and reads no clock.

    Args:
        options: times and limits.
        is_heard: whether the node of a replica id is heard.
    """

    __slots__ = ("_interval_s", "_is_heard", "_options", "_waiting")

    def __init__(self, options: LivenessOptions, is_heard: Callable[[int], bool]) -> None:
        self._options = options
        self._interval_s = options.heartbeat_interval_ms / 1000
        self._is_heard = is_heard
        self._waiting: list[_Campaign] = []

    @property
    def next_s(self) -> float | None:
        """When the next one is due, by the monotonic clock; None: there is none."""
        return self._waiting[0].due_s if self._waiting else None

    def add(self, lost: Sequence[Replica], now_s: float) -> None:
        """Take in replicas that have lost their leader; those that may not vote do not campaign."""
        for replica in lost:
            if replica.configuration.may_vote(replica.replica_id) and not replica.read_only:
                due_s = now_s + self._delay_s(replica)
                attempts = self._options.campaign_attempts
                campaign = _Campaign(due_s, replica.raft_group, replica.term, attempts)
                heapq.heappush(self._waiting, campaign)

    def take_due(self, replicas: Mapping[int, Replica], now_s: float) -> list[int]:
        """Return the raft groups that campaign now.

        Args:
            replicas: of this node, by raft group.
            now_s: by the monotonic clock.
        """
        due: list[int] = []
        while self._waiting and self._waiting[0].due_s <= now_s:
            campaign = heapq.heappop(self._waiting)
            replica = replicas.get(campaign.raft_group)
            if (
                replica is None
                or replica.read_only
                or replica.term != campaign.term
                or replica.leader_replica_id != NO_REPLICA
            ):
                continue  # another replica has won meanwhile, or is about to
            due.append(campaign.raft_group)
            if campaign.attempts > 1:
                heapq.heappush(self._waiting, campaign.again(now_s + self._interval_s))
        return due

    def forget_due(self, now_s: float) -> None:
        """Drop what is due: this node may not campaign now."""
        while self._waiting and self._waiting[0].due_s <= now_s:
            heapq.heappop(self._waiting)

    def _delay_s(self, replica: Replica) -> float:
        """All survivors order themselves alike, so that two campaigns seldom meet.

        Those of a resting raft group have the same log; in others the more advanced one wins by
        the votes that a less advanced one does not get.
        """
        configuration = replica.configuration
        survivors = [
            replica_id
            for replica_id in configuration.voters | configuration.outgoing
            if replica_id == replica.replica_id or self._is_heard(replica_id)
        ]
        survivors.sort(key=lambda replica_id: mix(replica.raft_group, replica_id))
        options = self._options
        spread_ms = mix(replica.raft_group, replica.term) % (options.campaign_spread_ms + 1)
        delay_ms = survivors.index(replica.replica_id) * options.campaign_step_ms + spread_ms
        return delay_ms / 1000


class _Campaign(NamedTuple):
    """A campaign to come."""

    due_s: float
    raft_group: int
    term: int
    attempts: int

    def again(self, due_s: float) -> _Campaign:
        """Return the next attempt."""
        return self._replace(due_s=due_s, attempts=self.attempts - 1)
