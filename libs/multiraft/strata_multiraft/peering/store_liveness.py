"""Liveness per node instead of per raft group (rules 13, 14; the clock of rule 4).

Nodes that share raft groups exchange store heartbeats. A raft group without news quiesces: its
leader names it in heartbeats, its followers stop their timers, and nothing is sent for it. These
rules keep that safe:

- Every raft message for a quiesced replica wakes it, on either side.
- A follower quiesces only under a leader whose node has its support, at the leader's term and log
  end. It wakes when support ends, when that node has a new boot id, or when the raft group is no
  longer in that node's list. In the first two cases the leader is gone: the other replicas forget
  it and campaign one after another.
- A leader quiesces only while a quorum is supported and has all entries; otherwise it wakes, and
  its quorum check runs again. A node that is heard again is offered the quiesced raft groups; it
  refuses those it lacks, and a refusal wakes the raft group. Quiesced raft groups with a replica on
  a restarted node wake.

Silence is counted in this node's own heartbeats, so a late node does not blame its peers for its
own lateness (rule 14): it reads its sockets between any two heartbeats. This module never awaits
and reads only the injected clock: `on_time` returns when it must be called next. Safety never
depends on liveness: raft decides who leads, liveness decides who sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from strata.raft.v1 import raft_pb2
from strata_multiraft.base.metrics import METRICS
from strata_multiraft.peering.angelia_transport import PeerIdentity
from strata_multiraft.peering.campaigns import Campaigns
from strata_multiraft.peering.heartbeats import PeerHeartbeats, skew_ms
from strata_multiraft.peering.peering_options import LivenessOptions
from strata_multiraft.peering.quiesced import FollowedQuiesced, LedQuiesced, QuiescedGroup
from strata_multiraft.replica.replica import Replica
from strata_raft import NO_REPLICA, Role
from strata_raft.quorum import is_quorum
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

NodeOf = Callable[[int], str | None]
"""The node of a replica id; None: not known now."""

_HEARTBEATS_BETWEEN_AUDITS = 10


class HeartbeatSender(Protocol):
    """The transport of heartbeats; `AngeliaTransport` is one."""

    def send_heartbeat(self, node_id: str, beat: raft_pb2.Beat) -> None:
        """Send a heartbeat, or lose it."""

    def forget(self, node_id: str) -> None:
        """The node is no peer any more."""


class RaftGroups(Protocol):
    """Actions of liveness on the driver (`raft_groups.py`). All act at once."""

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""

    def quiesce(self, raft_group: int) -> None:
        """Stop ticking a raft group."""

    def wake(self, raft_group: int) -> None:
        """Tick a raft group again; it calls `StoreLiveness.woken` if it rested."""

    def leaders_lost(self, raft_groups: Sequence[int]) -> None:
        """Wake these, and let them no longer count on a leader."""

    def campaign(self, raft_groups: Sequence[int]) -> None:
        """Ask for votes in these."""

    def hand_over(self, raft_groups: Sequence[int]) -> None:
        """Begin to give away the leadership of these."""

    def disk_mark(self) -> int:
        """Return how full this node's disk is, 0 to 3 (rule 11)."""

    def set_peer_disk_marks(self, marks: Mapping[str, int]) -> None:
        """Tell how full the disks of the peers that are heard are."""


class StoreLiveness:
    """See `liveness_port.Liveness`.

    Args:
        identity: this node and its boot id.
        groups: the driver.
        heartbeats: the transport.
        node_of: places replicas; asked anew each time.
        clock: monotonic for silence, wall for the comparison of clocks.
        options: times and limits.
        metrics: where they show.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        groups: RaftGroups,
        heartbeats: HeartbeatSender,
        *,
        node_of: NodeOf,
        clock: Clock,
        options: LivenessOptions,
        metrics: Metrics,
    ) -> None:
        metrics.declare(METRICS)
        self._identity = identity
        self._groups = groups
        self._heartbeats = heartbeats
        self._node_of = node_of
        self._clock = clock
        self._options = options
        self._interval_s = options.heartbeat_interval_ms / 1000
        self._peers: dict[str, _Peer] = {}
        self._forgotten_number = 0  # newest to a peer that was forgotten: a boot repeats none
        self._idle: dict[int, _Idle] = {}
        # Resting raft groups: led from here, with the nodes of their other replicas; followed
        # here, with the node that leads.
        self._led: dict[int, tuple[QuiescedGroup, frozenset[str]]] = {}
        self._followed: dict[int, str] = {}
        self._campaigns = Campaigns(
            options, lambda replica_id: self._is_supported(self._node_of(replica_id))
        )
        self._next_heartbeat_s = clock.monotonic_s()
        self._next_hand_over_s = self._next_heartbeat_s
        self._heartbeat_count = 0
        self._skew_ms = 0
        # A clock that is off is not forgotten when a right one falls silent. One for each machine.
        self._clocks_ms: dict[str, float] = {}
        self.machine_of: Callable[[str], str] = lambda node_id: node_id
        self.on_compared: Callable[[int], None] = lambda skew_ms: None
        self._peer_marks: Mapping[str, int] = {}
        self._lost_total = metrics.counter("strata_peer_support_lost_total")
        self._restarts_total = metrics.counter("strata_peer_restarts_total")
        self._lists_total = metrics.counter("strata_raft_quiet_lists_total")
        self._gauges = [
            metrics.gauge("strata_peers", self._count_peers),
            metrics.gauge("strata_raft_quiet", lambda: len(self._led) + len(self._followed)),
            metrics.gauge("strata_clock_skew_ms", lambda: self._skew_ms),
        ]

    # -- what can be asked -----------------------------------------------------------------------

    def heard_nodes(self) -> tuple[list[str], list[str]]:
        """Return the peers that have this node's support, and those that have not, sorted."""
        peers = sorted(self._peers.items())
        heard = [node_id for node_id, peer in peers if peer.heartbeats.supported]
        return heard, [node_id for node_id, peer in peers if not peer.heartbeats.supported]

    def clock_skew_ms(self) -> int:
        """Return this node's clock minus the median of all nodes' (rule 4)."""
        return self._skew_ms

    def close(self) -> None:
        """Take the gauges away."""
        for gauge in self._gauges:
            gauge.close()

    # -- for the driver (liveness_port.Liveness) -------------------------------------------------

    def may_rest(self, replica: Replica) -> bool:
        """See `Liveness.may_rest`."""
        news = (replica.term, replica.last_index)
        idle = self._idle.get(replica.raft_group)
        if idle is None or idle.news != news or replica.is_busy():
            self._idle[replica.raft_group] = _Idle(news)
            return False
        idle.ticks += 1
        if idle.ticks < self._options.quiesce_after_ticks:
            return False
        nodes = self._nodes_at_rest(replica)
        if nodes is None:
            return False
        item = QuiescedGroup(replica.raft_group, *news)
        self._led[replica.raft_group] = item, nodes
        for node_id in nodes:
            if self._is_supported(node_id):
                self._peers[node_id].led.add(item)
        return True

    def woken(self, replica: Replica) -> None:
        """See `Liveness.woken`."""
        self.removed(replica.raft_group)

    def removed(self, raft_group: int) -> None:
        """See `Liveness.removed`."""
        self._idle.pop(raft_group, None)
        if raft_group in self._led:
            for node_id in self._led.pop(raft_group)[1]:
                if node_id in self._peers:
                    self._peers[node_id].led.discard(raft_group)
        leader_node_id = self._followed.pop(raft_group, None)
        if leader_node_id in self._peers:
            self._peers[leader_node_id].followed.groups.discard(raft_group)

    def may_campaign(self) -> bool:
        """See `Liveness.may_campaign`."""
        return abs(self._skew_ms) <= self._options.max_clock_skew_ms

    def may_lead(self, node_id: str) -> bool:
        """See `Liveness.may_lead`; of a peer that is not heard nothing is known."""
        peer = self._peers.get(node_id)
        if peer is None or not peer.heartbeats.supported:
            return True
        offset_ms, limit_ms = peer.heartbeats.offset_ms(), self._options.max_clock_skew_ms
        return offset_ms is None or abs(offset_ms + self._skew_ms) <= limit_ms

    def is_silent(self, node_id: str) -> bool:
        """See `Liveness.is_silent`."""
        peer = self._peers.get(node_id)
        return peer is not None and not peer.heartbeats.supported

    def tell_disk_mark(self) -> None:
        """See `Liveness.tell_disk_mark`."""
        self._send_heartbeats()

    # -- from other nodes ------------------------------------------------------------------------

    def frame_from(self, node_id: str, boot_id: int) -> None:
        """Take note of the life a frame comes from, before what is in the frame."""
        peer = self._peer(node_id)
        if peer is not None and peer.heartbeats.life(boot_id):
            self._restarts_total.add(1)
            for raft_group in self._led_with(node_id):
                self._groups.wake(raft_group)
            self._leaders_lost_at(node_id)

    def heartbeat_from(self, node_id: str, beat: raft_pb2.Beat) -> None:
        """Take a heartbeat, after the raft messages of its frame."""
        peer = self._peer(node_id)
        if peer is None:
            return
        news = peer.heartbeats.received(beat, self._identity.boot_id, self._clock.wall_ms())
        if not news.fresh:
            return
        if news.regained:
            for raft_group in self._led_with(node_id):
                peer.led.add(self._led[raft_group][0])
        if beat.acknowledged_boot_id == self._identity.boot_id:
            peer.led.acknowledged(beat.acknowledged_number)
        peer.led.list_wanted = peer.led.list_wanted or beat.want_quiet
        for raft_group in beat.wake:
            if raft_group in peer.led.groups:
                self._groups.wake(raft_group)
        self._take_quiesced(node_id, peer, beat)
        peer.followed.compare(beat.quiet_count, beat.quiet_hash)

    def _take_quiesced(self, node_id: str, peer: _Peer, beat: raft_pb2.Beat) -> None:
        """Rest in what the peer leads quietly, or refuse; wake what its full list lacks."""
        items = [QuiescedGroup(q.raft_group, q.term, q.last_index) for q in beat.quiet]
        if beat.quiet_full:
            for raft_group in peer.followed.missing_in(items):
                self._groups.wake(raft_group)
        for item in items:
            if peer.followed.groups.get(item.raft_group) == item:
                continue
            if item.raft_group in peer.followed.groups:
                self._groups.wake(item.raft_group)
            if peer.heartbeats.supported and self._agrees(node_id, item):
                self._groups.quiesce(item.raft_group)
                peer.followed.groups.add(item)
                self._followed[item.raft_group] = node_id
            else:
                peer.followed.refused.add(item.raft_group)

    def _agrees(self, node_id: str, item: QuiescedGroup) -> bool:
        """Tell whether a replica here follows that node's leader and has all it has."""
        replica = self._groups.replicas().get(item.raft_group)
        return (
            replica is not None
            and not replica.read_only
            and replica.role in (Role.FOLLOWER, Role.LEARNER)
            and replica.term == item.term
            and replica.last_index == replica.commit_index == item.last_index
            and replica.leader_replica_id != NO_REPLICA
            and self._node_of(replica.leader_replica_id) == node_id
        )

    # -- time ------------------------------------------------------------------------------------

    def on_time(self) -> float:
        """Do the due work: heartbeats, judgement, campaigns.

        Returns:
            When to call again, in seconds of the monotonic clock; something may come up before.
        """
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + self._interval_s
            self._heartbeat(now_s)
        self._run_campaigns(now_s)
        next_s = self._campaigns.next_s
        return self._next_heartbeat_s if next_s is None else min(self._next_heartbeat_s, next_s)

    def _heartbeat(self, now_s: float) -> None:
        if self._heartbeat_count % _HEARTBEATS_BETWEEN_AUDITS == 0:
            self._follow_placement()
            self._audit()
        self._heartbeat_count += 1
        self._compare_clocks(now_s)
        self._learn_disk_marks()
        self._send_heartbeats()
        for node_id, peer in list(self._peers.items()):
            if peer.heartbeats.lose():
                self._lost_total.add(1)
                self._rest_without(node_id, peer)
                self._leaders_lost_at(node_id)

    def _send_heartbeats(self) -> None:
        for node_id, peer in self._peers.items():
            self._heartbeats.send_heartbeat(node_id, self._make_heartbeat(peer))

    def _make_heartbeat(self, peer: _Peer) -> raft_pb2.Beat:
        beat = peer.heartbeats.next_heartbeat(self._clock.wall_ms())
        named, beat.quiet_full = peer.led.take(beat.number)
        for item in named:
            beat.quiet.add(raft_group=item.raft_group, term=item.term, last_index=item.last_index)
        if beat.quiet_full:
            self._lists_total.add(1)
        beat.quiet_count = len(peer.led.groups)
        beat.quiet_hash = peer.led.groups.hash
        beat.want_quiet = peer.followed.want_list
        beat.wake.extend(peer.followed.take_refused())
        beat.disk_mark = self._groups.disk_mark()
        return beat

    def _follow_placement(self) -> None:
        """Exchange heartbeats with nodes that share a raft group, and nodes that send them."""
        placed = {
            self._node_of(replica_id)
            for replica in self._groups.replicas().values()
            for replica_id in replica.configuration.replicas()
        }
        wanted = {node_id for node_id in placed if node_id not in (None, self._identity.node_id)}
        for node_id in sorted(filter(None, wanted)):
            self._peer(node_id)
        for node_id in [n for n, peer in self._peers.items() if not peer.heartbeats.supported]:
            if node_id not in wanted:
                sent_number = self._peers.pop(node_id).heartbeats.sent_number
                self._forgotten_number = max(self._forgotten_number, sent_number)
                self._clocks_ms.pop(self.machine_of(node_id), None)
                self._heartbeats.forget(node_id)

    def _audit(self) -> None:
        """Wake what cannot go on resting, whatever happened to it unseen (a failed apply)."""
        replicas = self._groups.replicas()
        for raft_group in [*self._led, *self._followed]:
            replica = replicas.get(raft_group)
            if replica is None:
                self.removed(raft_group)
            elif replica.read_only or not self._still_rests(replica):
                self._groups.wake(raft_group)

    def _still_rests(self, replica: Replica) -> bool:
        """Tell whether a resting replica's role, and the node that leads it, are what they were."""
        if replica.raft_group in self._led:
            return replica.role is Role.LEADER
        # A leader whose place is not known any more is not found when its node falls silent.
        is_heard = self._is_supported(self._followed[replica.raft_group])
        return is_heard and replica.role is not Role.LEADER

    def _compare_clocks(self, now_s: float) -> None:
        # The others' clocks by this node's monotonic one: steps of its own clock do not touch them.
        own_ms = self._clock.wall_ms() - now_s * 1000
        for node_id, peer in self._peers.items():
            offset_ms = peer.heartbeats.offset_ms()
            if offset_ms is not None and peer.heartbeats.supported:
                self._clocks_ms[self.machine_of(node_id)] = own_ms + offset_ms
        offsets = [round(clock_ms - own_ms) for clock_ms in self._clocks_ms.values()]
        self._skew_ms = skew_ms(offsets)
        if offsets:
            self.on_compared(self._skew_ms)
        if self.may_campaign() or now_s < self._next_hand_over_s:
            return
        self._next_hand_over_s = now_s + self._options.hand_over_interval_ms / 1000
        led = [r.raft_group for r in self._groups.replicas().values() if r.role is Role.LEADER]
        self._groups.hand_over(led)

    def _learn_disk_marks(self) -> None:
        heard = {node_id: peer.heartbeats for node_id, peer in self._peers.items()}
        marks = {node_id: each.disk_mark for node_id, each in heard.items() if each.supported}
        if marks != self._peer_marks:
            self._peer_marks = marks
            self._groups.set_peer_disk_marks(marks)

    # -- a node is gone or back ------------------------------------------------------------------

    def _led_with(self, node_id: str) -> list[int]:
        """Return what rests under this node's leadership and has a replica there."""
        return [raft_group for raft_group, (_, nodes) in self._led.items() if node_id in nodes]

    def _rest_without(self, node_id: str, peer: _Peer) -> None:
        """Wake what has no quorum without a node; the rest need not hear of it."""
        replicas = self._groups.replicas()
        for raft_group in self._led_with(node_id):
            peer.led.discard(raft_group)
            if self._nodes_at_rest(replicas[raft_group]) is None:
                self._groups.wake(raft_group)

    def _leaders_lost_at(self, node_id: str) -> None:
        """The node's raft groups have no leader: the survivors campaign one after another."""
        lost = [
            replica
            for replica in self._groups.replicas().values()
            if replica.role is not Role.LEADER
            and replica.leader_replica_id != NO_REPLICA
            and self._node_of(replica.leader_replica_id) == node_id
        ]
        self._campaigns.add(lost, self._clock.monotonic_s())
        self._groups.leaders_lost([replica.raft_group for replica in lost])

    def _run_campaigns(self, now_s: float) -> None:
        if not self.may_campaign():
            self._campaigns.forget_due(now_s)
        elif due := self._campaigns.take_due(self._groups.replicas(), now_s):
            self._groups.campaign(due)

    # -- inside ----------------------------------------------------------------------------------

    def _nodes_at_rest(self, replica: Replica) -> frozenset[str] | None:
        """Return the nodes of the other replicas if none of them needs a message; else None."""
        configuration, last_index = replica.configuration, replica.last_index
        if configuration.is_joint() or replica.commit_index != last_index:
            return None
        complete = {replica.replica_id}
        nodes: set[str] = set()
        for progress in replica.progress():
            node_id = self._node_of(progress.replica_id)
            if node_id is None:
                return None
            nodes.add(node_id)
            if not self._is_supported(node_id):
                continue  # it is offered the rest when it comes back
            if progress.match_index != last_index:
                return None
            if progress.recently_heard and progress.applied_index < last_index:
                return None  # how far it is would not be heard any more
            complete.add(progress.replica_id)
        return frozenset(nodes) if is_quorum(configuration, complete) else None

    def _is_supported(self, node_id: str | None) -> bool:
        peer = self._peers.get(node_id or "")
        return peer is not None and peer.heartbeats.supported

    def _peer(self, node_id: str) -> _Peer | None:
        peer = self._peers.get(node_id)
        if peer is None and len(self._peers) < self._options.max_peers:
            peer = self._peers[node_id] = _Peer(self._options, self._forgotten_number)
        return peer

    def _count_peers(self) -> Iterable[tuple[float, Mapping[str, str]]]:
        heard, unheard = self.heard_nodes()
        yield len(heard), {"state": "heard"}
        yield len(unheard), {"state": "unheard"}


class _Peer:
    """One other node: its heartbeats, and the quiesced raft groups between it and this node."""

    __slots__ = ("followed", "heartbeats", "led")

    def __init__(self, options: LivenessOptions, sent_number: int) -> None:
        self.heartbeats = PeerHeartbeats(options.max_unconfirmed, sent_number)
        self.led = LedQuiesced()
        self.followed = FollowedQuiesced()


class _Idle:
    """Time for which a raft group led from here has had no news."""

    __slots__ = ("news", "ticks")

    def __init__(self, news: tuple[int, int]) -> None:
        self.news = news
        self.ticks = 0
