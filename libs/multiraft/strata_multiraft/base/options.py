"""Settings of the driver, with their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

FRAME_OVERHEAD_BYTES = 128
"""At least what an entry takes in a segment beside its payload: header and row of the footer."""


@dataclass(frozen=True, slots=True)
class MultiRaftOptions:
    """Limits and times of one node; each limit has a metric (`metrics.py`).

    Attributes:
        tick_ms: one tick of the raft core, also the heartbeat interval.
        election_ticks_min: shortest silence of a leader that starts a campaign.
        election_ticks_max: longest; each wait is drawn evenly between the two.
        max_raft_groups: replicas on this node.
        max_proposals_in_flight: proposals not yet committed, all raft groups together.
        max_bytes_in_flight: payload bytes of those proposals.
        max_proposal_bytes: payload bytes of one proposal.
        max_write_bytes: bytes of frames in one group commit, and of the proposals in one step,
            unless one proposal alone has more; see `for_log`.
        max_waiting_reads: callers of `applied` and `read_barrier`, all raft groups together.
        max_append_bytes: payload bytes in one request to a follower.
        max_peer_inflight_bytes: payload bytes in requests to one follower of one raft group that
            are not yet answered.
        catch_up_bytes_per_second: what is read back for followers, all raft groups together; 0:
            no limit.
        max_snapshot_installs: snapshots being installed here at once.
        max_snapshots_open: snapshots being sent from here at once.
        snapshot_part_bytes: rows or entries in one part.
        snapshot_bytes_per_second: of all snapshots sent from here together; 0: no limit.
        snapshot_attempts: calls in a row that brought nothing before a snapshot is given up; each
            goes on where the last one was cut.
        snapshot_retry_ms: wait after such a call; after the second twice that, and so on.
        snapshot_idle_ms: how long a snapshot whose call was cut stays open.
        max_unapplied_bytes: payload bytes per raft group kept in memory until they are applied;
            what is beyond is read back from the log.
        max_apply_bytes: payload bytes of one slice: what is given to a state machine before the
            other raft groups, and whatever else runs on the event loop, have their turn.
        max_apply_entries: entries of one slice.
        max_apply_ms: a slice that took longer makes the next one of its raft group smaller.
        fit_lag_ms: who has not applied what was committed so long ago is behind: nobody hands a
            leadership to it, and others campaign in its place while they can.
        read_retry_ms: pause before entries that the disk failed to read are read again.
        idle_mark_ms: silence after which the log's end is marked (`idle_mark.py`).
        disk_full_retry_ms: how long proposals are refused after the log had no room.
    """

    tick_ms: int = 100
    election_ticks_min: int = 6
    election_ticks_max: int = 10
    max_raft_groups: int = 4096
    max_proposals_in_flight: int = 65_536
    max_bytes_in_flight: int = 256 << 20
    max_proposal_bytes: int = 8 << 20
    max_write_bytes: int = 64 << 20
    max_waiting_reads: int = 65_536
    max_append_bytes: int = 1 << 20
    max_peer_inflight_bytes: int = 16 << 20
    catch_up_bytes_per_second: int = 256 << 20
    max_snapshot_installs: int = 2
    max_snapshots_open: int = 2
    snapshot_part_bytes: int = 1 << 20
    snapshot_bytes_per_second: int = 128 << 20
    snapshot_attempts: int = 8
    snapshot_retry_ms: int = 200
    snapshot_idle_ms: int = 10_000
    max_unapplied_bytes: int = 16 << 20
    max_apply_bytes: int = 1 << 20
    max_apply_entries: int = 256
    max_apply_ms: int = 10
    fit_lag_ms: int = 1000
    read_retry_ms: int = 500
    idle_mark_ms: int = 1000
    disk_full_retry_ms: int = 1000

    @classmethod
    def for_log(cls, segment_bytes: int, **limits: int) -> MultiRaftOptions:
        """Return options whose writes fit into segments of this length.

        Args:
            segment_bytes: of the log.
            limits: other fields; those that a segment bounds are lowered to what fits.
        """
        quarter = segment_bytes // 4
        wanted = cls(**limits)
        return replace(
            wanted,
            max_write_bytes=min(wanted.max_write_bytes, quarter),
            max_append_bytes=min(wanted.max_append_bytes, quarter),
            snapshot_part_bytes=min(wanted.snapshot_part_bytes, quarter),
            # Room is left for the hard states that begin a segment and the footer that ends it.
            max_proposal_bytes=min(wanted.max_proposal_bytes, 3 * quarter),
        )

    def __post_init__(self) -> None:
        if not 1 < self.election_ticks_min <= self.election_ticks_max:
            raise ValueError("election_ticks_min must be 2 or more and at most election_ticks_max")
