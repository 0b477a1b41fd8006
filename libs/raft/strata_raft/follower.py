"""A replica that follows: it takes entries from the leader and notices a silent leader."""

from __future__ import annotations

from strata_raft.events import InstallSnapshot
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    SnapshotRequest,
    TimeoutNow,
)
from strata_raft.state import ReplicaState
from strata_raft.types import NO_REPLICA, Role, SnapshotMetadata


class Follower:
    """Follower or learner. Its methods return the role to take next, or None to stay."""

    __slots__ = ("_state", "_ticks", "_timeout_ticks")

    def __init__(self, state: ReplicaState, timeout_ticks: int) -> None:
        self._state = state
        self._timeout_ticks = timeout_ticks
        self._ticks = 0

    def tick(self) -> Role | None:
        """Count silence; too much of it makes a voter ask for pre-votes (thesis 9.6)."""
        self._ticks += 1
        if self._ticks < self._timeout_ticks:
            return None
        if self._state.may_campaign():
            return Role.PRE_CANDIDATE
        self._state.leader_id = NO_REPLICA
        return None

    def hears_leader(self) -> bool:
        """Tell whether a leader spoke within the shortest election timeout (thesis 4.2.3)."""
        return (
            self._state.leader_id != NO_REPLICA and self._ticks < self._state.options.election_ticks
        )

    def wants_to_lead(self) -> None:
        """Campaign with the next tick: a candidate that is less fit has just been refused."""
        self._ticks = self._timeout_ticks

    def rests(self) -> None:
        """Forget the silence so far: the leader's node has just said that it leads."""
        self._ticks = 0

    def voted(self) -> None:
        """Give the candidate that got the vote time to win."""
        self._ticks = 0

    def receive(self, message: Message) -> Role | None:
        """Handle a message of the current term."""
        match message:
            case AppendRequest():
                self._heard_from(message.source)
                self._append(message)
            case Heartbeat():
                self._heard_from(message.source)
                self._heartbeat(message)
            case SnapshotRequest():
                self._heard_from(message.source)
                self._snapshot(message)
            case TimeoutNow() if self._state.may_campaign():
                return Role.CANDIDATE
            case _:
                pass  # an answer to a question of an earlier role
        return None

    def installed(self, snapshot: SnapshotMetadata, leader_id: int) -> None:
        """Continue after a snapshot and tell the leader where the log is now."""
        self._state.restore(snapshot)
        self._respond(leader_id, snapshot.index)

    def _heard_from(self, leader_id: int) -> None:
        self._state.leader_id = leader_id
        self._state.pre_votes_refused = 0
        self._ticks = 0

    def _append(self, request: AppendRequest) -> None:
        state, log = self._state, self._state.log
        if request.previous_index < log.committed:
            self._respond(request.source, log.committed)
            return
        if not log.matches(request.previous_index, request.previous_term):
            hint_index, hint_term = log.agreement(request.previous_index, request.previous_term)
            state.send_after_sync(
                AppendResponse(
                    source=state.replica_id,
                    target=request.source,
                    term=state.term,
                    index=request.previous_index,
                    rejected=True,
                    hint_index=hint_index,
                    hint_term=hint_term,
                )
            )
            return
        position = log.first_conflict(request.entries)
        if position < len(request.entries):
            news = request.entries[position:]
            if news[0].index <= log.last_index:
                state.truncate(news[0].index)
            state.append(news)
        # Entries beyond those of the request may be an old leader's: they are not confirmed.
        last_index = request.previous_index + len(request.entries)
        state.commit_to(min(request.commit, last_index))
        self._respond(request.source, last_index)

    def _heartbeat(self, heartbeat: Heartbeat) -> None:
        state = self._state
        state.commit_to(min(heartbeat.commit, state.log.last_index))
        state.send(
            HeartbeatResponse(
                state.replica_id, heartbeat.source, state.term, heartbeat.context, state.applied
            )
        )

    def _snapshot(self, request: SnapshotRequest) -> None:
        state, snapshot = self._state, request.snapshot
        if snapshot.index <= state.log.committed:
            self._respond(request.source, state.log.committed)
        elif state.log.matches(snapshot.index, snapshot.term):
            state.commit_to(snapshot.index)
            self._respond(request.source, snapshot.index)
        else:
            state.install = InstallSnapshot(snapshot, request.source)

    def _respond(self, leader_id: int, index: int) -> None:
        """Accept: only after the sync, since it says that everything up to `index` is durable."""
        state = self._state
        state.send_after_sync(AppendResponse(state.replica_id, leader_id, state.term, index))
