"""A storage node's report on itself: its disk, faults of its raft groups, uploads to the tier.

The node sends it to the brokers that watch and, in heartbeats, to the nameserver, whenever it
changes; they decide its meaning (`strata_metadata.cluster_health`). Invariant: the report changes
only when a fact did, so ages and counts that move all the time are not in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from strata.meta.v1 import meta_pb2 as meta
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_storage.base.disk_guard import DiskGuard
from strata_storage.cluster.unhosted import MissingReplica
from strata_storage.tiering.node import NodeTiering

INTERVAL_S = 0.25

_LAG_PATIENCE_S = 1.0
"""A follower that lacks what is committed for so long is missing; under load all lag a little."""
_REASON_CHARACTERS = 200

HeardNodes = Callable[[], tuple[Sequence[str], Sequence[str]]]
"""Gives the storage nodes that are heard, and those that are not."""


class Looked(Protocol):
    """The part of the storage node that is needed.

    Attributes:
        disk_guard: how full the disk is.
        tiering: uploads.
    """

    disk_guard: DiskGuard
    tiering: NodeTiering

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica; empty: not known."""


class NodeHealth:
    """See the module docstring.

    Args:
        node: what is looked at.
        heard_nodes: see `HeardNodes`.
        clock: monotonic time.
        tell: told what is said when it is something else than before.

    Attributes:
        missing: gives by raft group the replicas that are wanted here and not hosted; set once
            somebody knows what is wanted.
        said: what was said last.
        version: raised with each change of what is said.
    """

    def __init__(
        self,
        node: Looked,
        heard_nodes: HeardNodes,
        clock: Clock,
        *,
        tell: Callable[[meta.StorageHealth], None],
    ) -> None:
        self._node = node
        self._heard_nodes = heard_nodes
        self._clock = clock
        self._tell = tell
        # (raft group, replica id) -> since when (monotonic) it lacks what is committed.
        self._lagging_s: dict[tuple[int, int], float] = {}
        self.missing: Callable[[], Mapping[int, MissingReplica]] = dict
        self.said = meta.StorageHealth()
        self.version = 0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(INTERVAL_S)

    def check(self) -> meta.StorageHealth:
        """Look once, tell if it is news, and return what is said now."""
        said = self._look()
        if said != self.said:
            self.said = said
            self.version += 1
            self._tell(said)
        return said

    def _look(self) -> meta.StorageHealth:
        replicas = self._node.replicas()
        state, detail = self._tier()
        return meta.StorageHealth(
            disk_mark=int(self._node.disk_guard.mark),
            lacking=self._lacking(replicas),
            stopped=[
                meta.StoppedReplica(raft_group=number, reason=reason[:_REASON_CHARACTERS])
                for number, reason in sorted(self._stopped(replicas).items())
            ],
            tier_state=state,
            tier_detail=detail,
        )

    def _stopped(self, replicas: Mapping[int, Replica]) -> dict[int, str]:
        """Return why replicas take no part; a replica that was not tried yet is about to."""
        stopped = {number: each.text() for number, each in self.missing().items() if each.reason}
        stopped.update(
            {number: each.read_only for number, each in replicas.items() if each.read_only}
        )
        return stopped

    def _lacking(self, replicas: Mapping[int, Replica]) -> list[meta.LackingGroup]:
        now_s, before = self._clock.monotonic_s(), self._lagging_s
        unheard = frozenset(self._heard_nodes()[1])
        self._lagging_s = {}
        lacking = []
        for number, replica in sorted(replicas.items()):
            if not replica.is_ready_leader():
                continue
            missing = []
            for progress in replica.progress():
                follower = progress.replica_id
                if follower == replica.replica_id:
                    continue
                key = (number, follower)
                if not replica.caught_up(follower):
                    self._lagging_s[key] = before.get(key, now_s)
                since_s = self._lagging_s.get(key, now_s)
                lags = now_s - since_s >= _LAG_PATIENCE_S
                if lags or self._node.node_of(follower) in unheard:
                    missing.append(follower)
            mark = replica.disk_mark
            if missing or mark:
                lacking.append(
                    meta.LackingGroup(
                        raft_group=number, missing_replica_ids=sorted(missing), disk_mark=mark
                    )
                )
        return lacking

    def _tier(self) -> tuple[str, str]:
        tiering = self._node.tiering
        failure = tiering.failure()
        if failure:
            return "UNREACHABLE", failure[:_REASON_CHARACTERS]
        max_lag_ms = tiering.max_lag_ms()
        if max_lag_ms and tiering.lag_ms() > max_lag_ms:
            return "BEHIND", f"messages wait for more than {max_lag_ms // 1_000} s"
        return "", ""
