"""Store liveness and raft cores of several nodes under virtual time, with a bad network.

Frames are lost, delayed, repeated and overtake each other; links are cut in one direction or both;
nodes crash, restart with a new boot id and pause for a while. Disks are perfect: `raft_cluster.py`
simulates bad disks. Everything follows from the seed.

One invariant is checked all the time: no follower stays quiesced under a node that died a while
ago.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from strata.raft.v1 import raft_pb2
from strata_multiraft.base import Envelope
from strata_multiraft.driver import is_late_answer
from strata_multiraft.peering import LivenessOptions, PeerIdentity, StoreLiveness
from strata_multiraft.replica import Replica
from strata_raft import (
    Campaign,
    Configuration,
    EventRefused,
    ForgetLeader,
    Message,
    Propose,
    RaftOptions,
    Receive,
    ReplicaProgress,
    Role,
    TransferLeadership,
)
from strata_runtime.metrics import Metrics
from strata_sim.raft_member import RaftMember

TICK_MS = 100
_REST_AFTER_DEATH_MS = 1_500
"""A follower must not rest longer than this under a node that died."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is; probabilities per frame."""

    loss: float = 0.05
    repeat: float = 0.02
    slow: float = 0.05
    max_delay_ms: int = 20
    max_slow_ms: int = 400


class LivenessWorld:
    """Nodes `n0`, `n1`, ...; every raft group has a replica on three of them."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        raft_groups: int = 4,
        weather: Weather | None = None,
        options: LivenessOptions | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.weather = weather or Weather()
        self.options = options or LivenessOptions(quiesce_after_ticks=3)
        self.now_ms = 0
        self.raft_messages = 0
        self.heartbeats = 0
        self.cut: set[tuple[int, int]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.placement = {
            raft_group: [(raft_group + k) % nodes for k in range(3)]
            for raft_group in range(1, raft_groups + 1)
        }
        self.nodes = [SimNode(self, number) for number in range(nodes)]
        for node in self.nodes:
            node.boot()

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, work = heapq.heappop(self._events)
            work()
        self.now_ms = end_ms

    def after(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), work))

    def send(
        self, source: int, target: int, envelopes: Sequence[Envelope], beat: raft_pb2.Beat | None
    ) -> None:
        """Send a frame, as well as the weather allows."""
        self.raft_messages += len(envelopes)
        self.heartbeats += beat is not None
        weather, chance = self.weather, self.random.random
        boot_id = self.nodes[source].boot_id
        for _ in range(1 + (chance() < weather.repeat)):
            if (source, target) in self.cut or chance() < weather.loss:
                continue
            slowest_ms = weather.max_slow_ms if chance() < weather.slow else weather.max_delay_ms
            receiver = self.nodes[target]
            self.after(
                self.random.randint(1, slowest_ms),
                lambda receiver=receiver: receiver.arrives(source, boot_id, envelopes, beat),  # type: ignore[misc]
            )

    def any_fault(self) -> None:
        """Let something happen, or nothing."""
        node = self.random.choice(self.nodes)
        other = self.random.choice(self.nodes)
        match self.random.randrange(8):
            case 0 if node.is_up:
                node.crash()
            case 1 | 2 if not node.is_up:
                node.boot()
            case 3 if node is not other:
                self.cut.add((node.number, other.number))
            case 4:
                self.cut.clear()
            case 5:
                node.stand_still(self.random.randint(50, 2_000))
            case 6:
                self.propose(self.random.choice(list(self.placement)))
            case _:
                pass

    def heal(self) -> None:
        """End all cuts and bring all nodes up."""
        self.cut.clear()
        for node in self.nodes:
            if not node.is_up:
                node.boot()

    def leader(self, raft_group: int) -> SimNode | None:
        """Return the node that leads with the highest term, if any does."""
        found = [
            (node.members[raft_group].node.term, node.number)
            for node in self.nodes
            if node.is_up
            and raft_group in node.members
            and raft_group not in node.failed
            and node.members[raft_group].node.role is Role.LEADER
        ]
        return self.nodes[max(found)[1]] if found else None

    def propose(self, raft_group: int) -> bool:
        """Propose at the leader; return whether there was one that took it."""
        node = self.leader(raft_group)
        if node is None or node.stands_still():
            return False
        member = node.members[raft_group]
        try:
            node.perform(raft_group, member.step(Propose(((b"x",),))))
        except EventRefused:
            return False
        node.end_turn()
        return True

    def is_quiet(self) -> bool:
        """Tell whether every replica on every live node rests."""
        return all(node.resting == set(node.members) for node in self.nodes if node.is_up)


class SimNode:
    """One node: raft cores, their ticks, and store liveness; see `store_liveness.RaftGroups`."""

    def __init__(self, world: LivenessWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.boot_id = 0
        self.is_up = False
        self.died_at_ms = 0
        self.clock_offset_ms = 0
        self.members: dict[int, RaftMember] = {}
        self.ticked: set[int] = set()
        self.resting: set[int] = set()
        self.failed: set[int] = set()
        self._still_until_ms = 0
        self._outbox: dict[int, list[Envelope]] = {}
        self.liveness: StoreLiveness
        for raft_group, placed in world.placement.items():
            if number in placed:
                voters = frozenset(replica_id(raft_group, other) for other in placed)
                self.members[raft_group] = RaftMember(
                    replica_id(raft_group, number),
                    Configuration(voters),
                    lambda: world.random.randint(6, 10),
                    options=RaftOptions(),
                )

    # -- life ------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start, with a new boot id."""
        self.boot_id = self.world.random.getrandbits(63) + 1
        self.is_up = True
        self._still_until_ms = 0
        self.ticked, self.resting, self.failed = set(self.members), set(), set()
        for member in self.members.values():
            member.restart()
        self.liveness = StoreLiveness(
            PeerIdentity(name(self.number), self.boot_id),
            self,
            self,
            node_of=node_of,
            clock=self,
            options=self.world.options,
            metrics=Metrics.disabled(),
        )
        boot_id = self.boot_id
        self.world.after(self.world.random.randint(0, TICK_MS), lambda: self._tick(boot_id))
        self.world.after(self.world.random.randint(0, TICK_MS), lambda: self._on_time(boot_id))

    def crash(self) -> None:
        """Die; what was synced stays."""
        self.is_up = False
        self.died_at_ms = self.world.now_ms
        self._outbox.clear()

    def fail(self, raft_group: int) -> None:
        """Let one replica fall silent, as after a failed apply, until the next boot."""
        self.failed.add(raft_group)

    def stand_still(self, duration_ms: int) -> None:
        """Do nothing for a while; what arrives waits."""
        self._still_until_ms = max(self._still_until_ms, self.world.now_ms + duration_ms)

    def stands_still(self) -> bool:
        """Tell whether the node does nothing now."""
        return self.world.now_ms < self._still_until_ms

    # -- Clock -----------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self.world.now_ms / 1000

    def wall_ms(self) -> int:
        """See `Clock`."""
        return 1_000_000 + self.world.now_ms + self.clock_offset_ms

    # -- the driver ------------------------------------------------------------------------------

    def perform(self, raft_group: int, outgoing: list[Message]) -> None:
        """Send messages; writes are durable at once. A member that is stepped leaves quiescence."""
        self.wake(raft_group)
        member = self.members[raft_group]
        while member.pending:
            outgoing += member.sync()
        for message in outgoing:
            target = message.target % 100
            self._outbox.setdefault(target, []).append(Envelope(raft_group, message))

    def end_turn(self) -> None:
        """Send what was collected."""
        outbox, self._outbox = self._outbox, {}
        for target, envelopes in outbox.items():
            self.world.send(self.number, target, envelopes, None)

    def arrives(
        self,
        source: int,
        boot_id: int,
        envelopes: Sequence[Envelope],
        beat: raft_pb2.Beat | None,
    ) -> None:
        """Take a frame, later if the node stands still."""
        if not self.is_up:
            return
        if self.stands_still():
            wait_ms = self._still_until_ms - self.world.now_ms
            # Messages in a socket keep their order, mostly: it does not matter here.
            self.world.after(wait_ms, lambda: self.arrives(source, boot_id, envelopes, beat))
            return
        self.liveness.frame_from(name(source), boot_id)
        for envelope in envelopes:
            if envelope.raft_group in self.failed:
                continue
            member = self.members[envelope.raft_group]
            is_resting = envelope.raft_group in self.resting
            if is_resting and is_late_answer(envelope.message, member.node.term):
                continue
            self.perform(envelope.raft_group, member.step(Receive(envelope.message)))
        if beat is not None:
            self.liveness.heartbeat_from(name(source), beat)
        self.end_turn()

    def _tick(self, boot_id: int) -> None:
        if not self.is_up or boot_id != self.boot_id:
            return
        if self.stands_still():
            self.world.after(self._still_until_ms - self.world.now_ms, lambda: self._tick(boot_id))
            return
        for raft_group in sorted(self.ticked - self.failed):
            replica = SimReplica(self, raft_group)
            if replica.is_ready_leader() and self.liveness.may_rest(cast("Replica", replica)):
                self.quiesce(raft_group)
                continue
            self.perform(raft_group, self.members[raft_group].tick())
        self.end_turn()
        self._watch()
        self.world.after(TICK_MS, lambda: self._tick(boot_id))

    def _on_time(self, boot_id: int) -> None:
        if not self.is_up or boot_id != self.boot_id:
            return
        if self.stands_still():
            due_ms = self._still_until_ms
        else:
            due_ms = max(self.world.now_ms + 1, round(self.liveness.on_time() * 1000))
            self.end_turn()
        self.world.after(due_ms - self.world.now_ms, lambda: self._on_time(boot_id))

    def _watch(self) -> None:
        for raft_group in self.resting:
            leader_id = self.members[raft_group].node.leader_id
            leader = self.world.nodes[leader_id % 100]
            dead_ms = 0 if leader.is_up else self.world.now_ms - leader.died_at_ms
            still_ms = self.world.now_ms - self._still_until_ms
            assert min(dead_ms, still_ms) < _REST_AFTER_DEATH_MS, (
                f"raft group {raft_group} rests on n{self.number}, n{leader.number} is dead"
            )

    # -- store_liveness.HeartbeatSender ---------------------------------------------------------

    def send_heartbeat(self, node_id: str, beat: raft_pb2.Beat) -> None:
        """See `store_liveness.HeartbeatSender`."""
        self.world.send(self.number, int(node_id[1:]), [], beat)

    def forget(self, node_id: str) -> None:
        """See `store_liveness.HeartbeatSender`."""

    # -- store_liveness.RaftGroups ---------------------------------------------------------------

    def replicas(self) -> Mapping[int, Replica]:
        """See `store_liveness.RaftGroups`."""
        return {
            raft_group: cast("Replica", SimReplica(self, raft_group)) for raft_group in self.members
        }

    def quiesce(self, raft_group: int) -> None:
        """See `store_liveness.RaftGroups`."""
        self.ticked.discard(raft_group)
        self.resting.add(raft_group)
        self.members[raft_group].node.quiesced()

    def wake(self, raft_group: int) -> None:
        """See `store_liveness.RaftGroups`."""
        if raft_group in self.resting:
            self.resting.discard(raft_group)
            self.ticked.add(raft_group)
            self.liveness.woken(cast("Replica", SimReplica(self, raft_group)))

    def leaders_lost(self, raft_groups: Sequence[int]) -> None:
        """See `store_liveness.RaftGroups`."""
        for raft_group in raft_groups:
            self.perform(raft_group, self.members[raft_group].step(ForgetLeader()))

    def campaign(self, raft_groups: Sequence[int]) -> None:
        """See `store_liveness.RaftGroups`."""
        for raft_group in raft_groups:
            self.perform(raft_group, self.members[raft_group].step(Campaign()))

    def hand_over(self, raft_groups: Sequence[int]) -> None:
        """See `store_liveness.RaftGroups`."""
        for raft_group in raft_groups:
            member = self.members[raft_group]
            target = max(p.replica_id for p in member.node.progress())
            self.perform(raft_group, member.step(TransferLeadership(target)))

    def disk_mark(self) -> int:
        """See `store_liveness.RaftGroups`."""
        return 0

    def set_peer_disk_marks(self, marks: Mapping[str, int]) -> None:
        """See `store_liveness.RaftGroups`."""


class SimReplica:
    """Facts of a replica for store liveness."""

    def __init__(self, node: SimNode, raft_group: int) -> None:
        self.raft_group = raft_group
        self.read_only = "failed" if raft_group in node.failed else ""
        self._member = node.members[raft_group]
        self.replica_id = self._member.replica_id

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._member.node, attribute)

    @property
    def leader_replica_id(self) -> int:
        """See `Replica`."""
        return self._member.node.leader_id

    def progress(self) -> Sequence[ReplicaProgress]:
        """See `Replica`."""
        return self._member.node.progress()

    def is_busy(self) -> bool:
        """See `Replica`."""
        return False

    def is_ready_leader(self) -> bool:
        """See `Replica`."""
        node = self._member.node
        return node.role is Role.LEADER and len(self._member.applied) >= node.term_start_index


def name(number: int) -> str:
    """The node id of a node."""
    return f"n{number}"


def replica_id(raft_group: int, number: int) -> int:
    """The replica of a raft group on a node."""
    return raft_group * 100 + number


def node_of(replica: int) -> str | None:
    """The node of a replica."""
    return name(replica % 100)
