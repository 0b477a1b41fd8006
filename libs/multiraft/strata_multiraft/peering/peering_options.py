"""Settings of the traffic between nodes, with their limits: transport, liveness, snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """Limits per peer node (rule 15); how full they are shows in `strata_peer_queued_bytes`.

    Attributes:
        max_control_bytes: raft messages but append requests that wait to be sent.
        max_lease_bytes: append requests that wait with acks and lease releases, or no entries.
        max_append_bytes: those with other entries.
        max_fetch_bytes: those for followers that are behind.
        max_frame_bytes: one frame; a single larger envelope goes alone.
        max_calls_in_flight: frames that the peer has not answered yet.
        control_calls_in_flight: how many of them only control traffic may use.
        lease_calls_in_flight: how many more only control and lease traffic may use.
        lease_in_flight_bytes: bytes above `max_in_flight_bytes` that only they may use.
        max_in_flight_bytes: bytes in those frames above which appends wait; a beat
            waits for them in the socket, so on a slow wire they must pass well within the
            support timeout.
        connect_timeout_ms: a peer that does not answer by then is tried again later.
        deliver_timeout_ms: a frame not answered by then is lost.
        reconnect_first_ms: after a failed frame nothing but heartbeats is taken for so long.
        reconnect_max_ms: the pause doubles with every further failure up to this.
    """

    max_control_bytes: int = 4 * MIB
    max_lease_bytes: int = 4 * MIB
    max_append_bytes: int = 32 * MIB
    max_fetch_bytes: int = 16 * MIB
    max_frame_bytes: int = 1 * MIB
    max_calls_in_flight: int = 8
    control_calls_in_flight: int = 2
    lease_calls_in_flight: int = 1
    lease_in_flight_bytes: int = MIB // 2
    max_in_flight_bytes: int = 4 * MIB
    connect_timeout_ms: int = 1000
    deliver_timeout_ms: int = 3000
    reconnect_first_ms: int = 50
    reconnect_max_ms: int = 500


@dataclass(frozen=True, slots=True)
class LivenessOptions:
    """Times of store liveness (rules 4, 13, 14).

    Attributes:
        heartbeat_interval_ms: distance of heartbeats to every peer.
        support_timeout_ms: support of a peer ends when it acknowledged none of the heartbeats that
            fit into this time.
        quiesce_after_ticks: ticks of a leader without news after which its raft group may quiesce.
        campaign_step_ms: the survivors of a raft group campaign so far apart; more than the time
            by which they notice the silence apart, else they split the votes.
        campaign_spread_ms: campaigns of different raft groups are spread over this.
        campaign_attempts: how often a survivor asks again, each `heartbeat_interval_ms` later,
            since the others may notice the silence a little later.
        max_clock_skew_ms: further off the median of the nodes, a node does not campaign.
        hand_over_interval_ms: how often a node with a wrong clock tries to hand over.
        max_peers: nodes with which heartbeats are exchanged.
    """

    heartbeat_interval_ms: int = 100
    support_timeout_ms: int = 600
    quiesce_after_ticks: int = 10
    campaign_step_ms: int = 300
    campaign_spread_ms: int = 50
    campaign_attempts: int = 3
    max_clock_skew_ms: int = 250
    hand_over_interval_ms: int = 1000
    max_peers: int = 256

    @property
    def max_unconfirmed(self) -> int:
        """Heartbeats after the newest acknowledged one that support of a peer outlives."""
        return self.support_timeout_ms // self.heartbeat_interval_ms

    def __post_init__(self) -> None:
        if self.support_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ValueError("support_timeout_ms must be 3 heartbeat intervals or more")


@dataclass(frozen=True, slots=True)
class PeeringOptions:
    """All settings of `peering.Peering`."""

    transport: TransportOptions = field(default_factory=TransportOptions)
    liveness: LivenessOptions = field(default_factory=LivenessOptions)
