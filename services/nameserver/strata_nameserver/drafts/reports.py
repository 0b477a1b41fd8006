"""Reports of the leaders of raft groups: soft state of the metadata leader.

The leader and the caught-up replicas change from moment to moment, so they are never written; only
configurations are, by `raft_groups.take_reports`. A new metadata leader asks all nodes for complete
reports. Invariants: of two leaders of a raft group the one with the higher term counts; `_led_by`
holds what `_led` holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_nameserver.drafts.raft_groups import is_news, is_settled
from strata_nameserver.policies.facts import GroupFacts, NodeFacts, ReplicaFacts
from strata_nameserver.state.topology import Topology


class _Led(NamedTuple):
    node_id: str
    report: meta_pb2.LedGroup


class Reports:
    """The newest report of every raft group."""

    def __init__(self) -> None:
        self._led: dict[int, _Led] = {}
        # The same by node: heartbeats are many, and most say nothing new.
        self._led_by: defaultdict[str, set[int]] = defaultdict(set)
        self._damaged: dict[str, frozenset[int]] = {}
        # When a node last said that its clock is off, by monotonic time.
        self._clock_off_s: dict[str, float] = {}
        # Reports of nodes about themselves.
        self._told: dict[str, meta_pb2.StorageHealth] = {}
        # Raised whenever who leads what, or what nodes say of themselves, changes.
        self.version = 0

    def reset(self) -> None:
        """Forget everything."""
        self._led.clear()
        self._led_by.clear()
        self._damaged.clear()
        self._clock_off_s.clear()
        self._told.clear()
        self.version += 1

    def take(self, heartbeat: meta_pb2.HeartbeatRequest, now_s: float) -> None:
        """Take in what a storage node reports.

        The work grows with what the heartbeat says, not with the number of raft groups.
        """
        node_id = heartbeat.node_id
        if heartbeat.clock_is_off:
            self._clock_off_s[node_id] = now_s
        if heartbeat.damaged_replica_ids:
            self._damaged[node_id] = frozenset(heartbeat.damaged_replica_ids)
        else:
            self._damaged.pop(node_id, None)
        if self._told.get(node_id) != heartbeat.health:
            self._told[node_id] = heartbeat.health
            self.version += 1
        self.version += bool(heartbeat.led or heartbeat.led_no_longer or heartbeat.full)
        led = self._led_by[node_id]
        ended = led.intersection(heartbeat.led_no_longer)
        if heartbeat.full:
            ended |= led.difference(report.raft_group for report in heartbeat.led)
        led -= ended
        for number in ended:
            del self._led[number]
        for report in heartbeat.led:
            number = report.raft_group
            before = self._led.get(number)
            if before is None or before.report.term <= report.term:
                if before is not None:
                    self._led_by[before.node_id].discard(number)
                self._led[number] = _Led(node_id, report)
                led.add(number)

    def led(self) -> frozenset[int]:
        """Return the raft groups that have a leader."""
        return frozenset(self._led)

    def leaders(self) -> dict[int, str]:
        """Return raft group -> node that leads it."""
        return {number: known.node_id for number, known in self._led.items()}

    def told(self) -> Mapping[str, meta_pb2.StorageHealth]:
        """Return what storage nodes said last of themselves."""
        return self._told

    def forget(self, node_id: str) -> None:
        """A node is DOWN or removed: it leads nothing."""
        self._damaged.pop(node_id, None)
        self._clock_off_s.pop(node_id, None)
        self._told.pop(node_id, None)
        self.version += 1
        for number in self._led_by.pop(node_id, ()):
            del self._led[number]

    def clocks_off_since(self, since_s: float) -> frozenset[str]:
        """Return the nodes that said since a monotonic time that their clock is off."""
        return frozenset(node for node, said_s in self._clock_off_s.items() if said_s >= since_s)

    def leader_of(self, raft_group: int) -> str:
        """Return the node id of a raft group's leader; empty: not known."""
        known = self._led.get(raft_group)
        return known.node_id if known is not None else ""

    def news(self, topology: Topology) -> list[meta_pb2.LedGroup]:
        """Return the reports that change rows."""
        rows = topology.raft_groups
        return [
            known.report
            for number, known in self._led.items()
            if number in rows and is_news(known.report, rows[number])
        ]

    def group_facts(self, topology: Topology) -> list[GroupFacts]:
        """Return what placement must know of all raft groups."""
        return [self._facts_of(row) for _, row in sorted(topology.raft_groups.items())]

    def _facts_of(self, row: meta_pb2.RaftGroup) -> GroupFacts:
        known = self._led.get(row.raft_group)
        caught_up: Collection[int] = known.report.caught_up if known is not None else ()
        voters = set(row.membership.voters)
        replicas = tuple(
            ReplicaFacts(
                replica.replica_id,
                replica.node_id,
                is_voter=replica.replica_id in voters,
                is_caught_up=replica.replica_id in caught_up,
                # A node knows of its own replicas only.
                is_damaged=replica.replica_id in self._damaged.get(replica.node_id, ()),
                is_learner=replica.learner,
            )
            for replica in row.replicas
        )
        return GroupFacts(
            row.raft_group,
            replicas,
            is_settled=is_settled(row),
            is_led=known is not None,
            leaving_node_ids=frozenset(replica.node_id for replica in row.leaving),
            leader_node_id=known.node_id if known is not None else "",
            preferred_node_id=row.preferred_leader_node_id,
        )


def node_facts(
    nodes: Collection[meta_pb2.Node],
    load_bytes: Mapping[str, float],
    disks_used: Mapping[str, float],
    slow: Collection[str],
    clocks_off: Collection[str],
    now_ms: int,
    down_ms: Callable[[str], int],
) -> list[NodeFacts]:
    """Return what placement must know of storage nodes.

    Args:
        nodes: their rows.
        load_bytes: node id -> what it appends and serves.
        disks_used: node id -> share of its disk that is used.
        slow: those that append slowly.
        clocks_off: those whose clock is off, or was lately.
        now_ms: wall time.
        down_ms: gives how long a node was DOWN since it was last steadily UP.
    """
    return [
        NodeFacts(
            node.node_id,
            node.rack,
            node.machine,
            state=node.state,
            state_ms=max(0, now_ms - node.state_since_ms),
            down_ms=down_ms(node.node_id),
            draining=node.draining,
            load_bytes=load_bytes.get(node.node_id, 0.0),
            is_slow=node.node_id in slow,
            clock_is_off=node.node_id in clocks_off,
            disk_used=disks_used.get(node.node_id, 0.0),
        )
        for node in nodes
    ]
