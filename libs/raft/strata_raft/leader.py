"""A replica that leads: it appends, replicates, commits, confirms reads and changes membership.

Invariants: all entries from `term_start_index` on are of the leader's term, so a quorum commits an
index from there on, and never a lower index by itself (thesis 3.6.2). The leader counts itself in a
quorum only up to what is durable here; its own sync runs beside replication.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_raft.events import EventRefused
from strata_raft.log import Compacted
from strata_raft.membership import begin_change, encode_configuration, finish_change
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    SnapshotRequest,
    TimeoutNow,
)
from strata_raft.progress import Progress, ProgressState, ReplicaProgress
from strata_raft.quorum import is_quorum, quorum_index
from strata_raft.read_index import ReadIndex
from strata_raft.state import ReplicaState
from strata_raft.types import NO_REPLICA, Configuration, Entry, EntryKind, Payload, Role


class Leader:
    """One term of office. Its methods return the role to take next, or None to stay leader."""

    __slots__ = (
        "_early_reads",
        "_heartbeat_ticks",
        "_quorum_ticks",
        "_reads",
        "_state",
        "progress",
        "term_start_index",
        "transfer_target",
    )

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.progress: dict[int, Progress] = {}
        self.term_start_index = state.log.last_index + 1
        self.transfer_target = NO_REPLICA
        self._heartbeat_ticks = 0
        self._quorum_ticks = 0
        self._reads = ReadIndex(state.replica_id)
        # Reads that came before an entry of this term was committed (thesis 6.4, step 1).
        self._early_reads: list[int] = []

    def start(self) -> None:
        """Append the no-op that lets earlier entries commit (thesis 3.6.2, rule 1)."""
        self._follow_membership(self.term_start_index)
        self._append(EntryKind.NO_OP, ((),))

    # -- what the owner asks ---------------------------------------------------------------------

    def propose(self, payloads: Sequence[Payload]) -> None:
        """Append one entry per payload and replicate them."""
        if self.transfer_target != NO_REPLICA:
            raise EventRefused(f"leadership is being handed to replica {self.transfer_target}")
        self._append(EntryKind.NORMAL, payloads)

    def read(self, context: int) -> None:
        """Answer a read now if this replica alone is a quorum, else ask for confirmation."""
        state = self._state
        if len(self._reads) + len(self._early_reads) >= state.options.max_pending_reads:
            raise EventRefused("too many reads wait for confirmation (max_pending_reads)")
        if state.log.committed < self.term_start_index:
            self._early_reads.append(context)
            return
        self._reads.add(context, state.log.committed)
        self._confirm_reads()
        if self._reads:
            self._broadcast_heartbeat()

    def transfer(self, target: int) -> None:
        """Bring the target up to date, then make it campaign (thesis 3.10)."""
        state = self._state
        if target == state.replica_id:
            return
        if not state.membership.current.may_vote(target):
            raise EventRefused(f"replica {target} is not a voter")
        self.transfer_target = target
        self._quorum_ticks = 0
        self._send_append(target, even_empty=True)
        self._finish_transfer(target)

    def change_membership(self, voters: frozenset[int], learners: frozenset[int]) -> None:
        """Append the joint configuration; the final one follows when it is committed."""
        membership = self._state.membership
        if self._state.log.committed < max(self.term_start_index, membership.index):
            raise EventRefused("the last configuration or this leader's no-op is not committed")
        try:
            joint = begin_change(membership.current, voters, learners)
        except ValueError as error:
            raise EventRefused(str(error)) from error
        self._append_configuration(joint)

    def step_down(self, successor: int) -> Role:
        """Follow from now on; a successor that is named campaigns without waiting (thesis 3.10)."""
        state = self._state
        if successor in self.progress and state.membership.current.may_vote(successor):
            state.send(TimeoutNow(state.replica_id, successor, state.term))
        return Role.FOLLOWER

    def persisted(self) -> Role | None:
        """Count this replica's own durable entries."""
        return self._advance_commit()

    def write_failed(self, *, configuration_undone: bool) -> Role | None:
        """Stay only if no other replica can have seen the lost entries (rule 11).

        Their indexes are used again in this term, so no other replica may hold them. With a
        configuration undone there were others before or after it.
        """
        if (
            self.progress
            or configuration_undone
            or self._state.log.persisted < self.term_start_index
        ):
            return Role.FOLLOWER
        return None

    def entries_fetched(self) -> None:
        """Send what was not in memory before."""
        for peer in self.progress:
            self._fill_window(peer)

    def peer_unreachable(self, replica_id: int) -> None:
        """Stop pipelining: what was sent is probably lost (rule 15)."""
        progress = self.progress.get(replica_id)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.become_probe()

    def snapshot_sent(self, replica_id: int, *, delivered: bool) -> None:
        """Go on after a snapshot, or ask again where the follower is."""
        progress = self.progress.get(replica_id)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        if delivered:
            progress.become_probe()
        else:
            progress.snapshot_failed()
        # The follower answers when it has installed the data; until a sign of life, do not ask.
        progress.probe_sent = True

    def describe_progress(self) -> tuple[ReplicaProgress, ...]:
        """Return how far each follower and learner is, by replica id."""
        learners = self._state.membership.current.learners
        return tuple(
            ReplicaProgress(
                replica_id,
                progress.match,
                progress.state,
                progress.is_active or progress.was_active,
                replica_id in learners,
                progress.applied,
            )
            for replica_id, progress in sorted(self.progress.items())
        )

    # -- time ------------------------------------------------------------------------------------

    def tick(self) -> Role | None:
        """Send heartbeats; step down without a quorum's answers for an election timeout."""
        options = self._state.options
        for progress in self.progress.values():
            progress.ticked()
        self._quorum_ticks += 1
        if self._quorum_ticks >= options.election_ticks:
            self._quorum_ticks = 0
            self.transfer_target = NO_REPLICA
            if not self._has_active_quorum():
                return Role.FOLLOWER
        self._heartbeat_ticks += 1
        if self._heartbeat_ticks >= options.heartbeat_ticks:
            self._broadcast_heartbeat()
        return None

    def _has_active_quorum(self) -> bool:
        active = {self._state.replica_id}
        for replica_id, progress in self.progress.items():
            if progress.is_active:
                active.add(replica_id)
            progress.quorum_checked()
        return is_quorum(self._state.membership.current, active)

    # -- messages --------------------------------------------------------------------------------

    def receive(self, message: Message) -> Role | None:
        """Handle an answer of this term from a replica of the current configuration."""
        progress = self.progress.get(message.source)
        if progress is None:
            return None
        match message:
            case AppendResponse() if message.rejected:
                self._append_rejected(message, progress)
            case AppendResponse():
                return self._append_accepted(message, progress)
            case HeartbeatResponse():
                self._heartbeat_answered(message, progress)
            case _:
                pass  # an answer to a question of an earlier role
        return None

    def _append_rejected(self, response: AppendResponse, progress: Progress) -> None:
        progress.is_active = True
        retry_from = response.hint_index
        if response.hint_term > 0:
            retry_from, _ = self._state.log.agreement(response.hint_index, response.hint_term)
        if progress.rejected(response.index, retry_from):
            self._send_append(response.source, even_empty=True)

    def _append_accepted(self, response: AppendResponse, progress: Progress) -> Role | None:
        progress.is_active = True
        was_probing = progress.state is ProgressState.PROBE
        is_news = progress.accepted(response.index, self._state.log.first_index)
        next_role = self._advance_commit() if is_news else None
        # The commit may have finished a membership change that removed this follower.
        if (is_news or was_probing) and response.source in self.progress:
            self._fill_window(response.source)
            self._tell_commit(response.source)
            self._finish_transfer(response.source)
        return next_role

    def _heartbeat_answered(self, response: HeartbeatResponse, progress: Progress) -> None:
        progress.heard()
        progress.applied = response.applied
        if progress.state is ProgressState.SNAPSHOT:
            # The request may be lost; a follower that is at it ignores the repetition.
            self._send_snapshot(response.source, progress)
        elif progress.state is ProgressState.PROBE or (
            progress.match < self._state.log.last_index and progress.may_be_lost()
        ):
            # With nothing new to send, an empty request finds out whether one was lost, and that
            # a follower which came back still holds everything.
            progress.asked()
            self._send_append(response.source, even_empty=True)
        self._reads.acknowledge(response.source, response.context)
        self._confirm_reads()

    def _finish_transfer(self, replica_id: int) -> None:
        state = self._state
        if replica_id != self.transfer_target:
            return
        if self.progress[replica_id].match == state.log.last_index:
            state.send(TimeoutNow(state.replica_id, replica_id, state.term))

    # -- appending and committing ----------------------------------------------------------------

    def _append(self, kind: EntryKind, payloads: Sequence[Payload]) -> None:
        state = self._state
        first = state.log.last_index + 1
        state.append(
            [
                Entry(state.term, index, kind, payload)
                for index, payload in enumerate(payloads, first)
            ]
        )
        for peer in self.progress:
            self._fill_window(peer)

    def _append_configuration(self, configuration: Configuration) -> None:
        state = self._state
        payload = encode_configuration(configuration)
        index = state.log.last_index + 1
        state.append([Entry(state.term, index, EntryKind.CONFIGURATION, payload)])
        # A new replica is probed with the entry that brought it in.
        self._follow_membership(index)
        for peer in self.progress:
            self._fill_window(peer)

    def _follow_membership(self, next_index: int) -> None:
        """Keep a progress for exactly the other replicas of the configuration in force."""
        state = self._state
        wanted = state.membership.current.replicas() - {state.replica_id}
        for replica_id in self.progress.keys() - wanted:
            del self.progress[replica_id]
        for replica_id in sorted(wanted - self.progress.keys()):
            self.progress[replica_id] = Progress(next_index, state.options)

    def _advance_commit(self) -> Role | None:
        state = self._state
        index = self._quorum_index()
        if index < self.term_start_index or not state.commit_to(index):
            return None
        for context in self._early_reads:
            self._reads.add(context, index)
        self._early_reads.clear()
        self._confirm_reads()
        next_role = self._after_configuration_committed()
        for peer in self.progress:
            self._tell_commit(peer)
        return next_role

    def _quorum_index(self) -> int:
        state = self._state
        if not self.progress and state.is_voter():
            return state.log.persisted
        match = {replica_id: progress.match for replica_id, progress in self.progress.items()}
        match[state.replica_id] = state.log.persisted
        return quorum_index(state.membership.current, match)

    def _after_configuration_committed(self) -> Role | None:
        """Finish a joint change, or leave if the final configuration is without this replica."""
        state = self._state
        membership = state.membership
        if state.log.committed < membership.index:
            return None
        if membership.current.is_joint():
            self._append_configuration(finish_change(membership.current))
        elif not state.is_voter():
            return self.step_down(self._most_advanced_voter())
        return None

    def _most_advanced_voter(self) -> int:
        voters = self._state.membership.current.voters
        match = {id_: each.match for id_, each in self.progress.items() if id_ in voters}
        return max(match, key=lambda replica_id: (match[replica_id], replica_id), default=0)

    def _confirm_reads(self) -> None:
        if self._reads:
            confirmed = self._reads.take_confirmed(self._state.membership.current)
            self._state.answer_reads(confirmed)

    # -- sending ---------------------------------------------------------------------------------

    def _broadcast_heartbeat(self) -> None:
        state = self._state
        self._heartbeat_ticks = 0
        for replica_id, progress in self.progress.items():
            state.send(
                Heartbeat(
                    source=state.replica_id,
                    target=replica_id,
                    term=state.term,
                    # Beyond `match` the follower may hold another leader's entries.
                    commit=min(progress.match, state.log.committed),
                    context=self._reads.round,
                )
            )

    def _fill_window(self, replica_id: int) -> None:
        while self._send_append(replica_id, even_empty=False):
            pass

    def _tell_commit(self, replica_id: int) -> None:
        """Send the commit index if no request has carried it and a follower waits for it."""
        if not self._state.options.tells_commit_at_once:
            return
        if self.progress[replica_id].sent_commit < self._state.log.committed:
            self._send_append(replica_id, even_empty=True)

    def _send_append(self, replica_id: int, *, even_empty: bool) -> bool:
        """Send the next entries; return whether a request with entries left."""
        state, progress = self._state, self.progress[replica_id]
        if progress.is_paused():
            return False
        previous_index = progress.next - 1
        try:
            previous_term = state.log.term(previous_index)
            entries = state.log.entries(progress.next, state.options.max_append_bytes)
        except Compacted:
            self._send_snapshot(replica_id, progress)
            return False
        if not entries and (entries is None or not even_empty):
            return False
        state.send(
            AppendRequest(
                source=state.replica_id,
                target=replica_id,
                term=state.term,
                previous_index=previous_index,
                previous_term=previous_term,
                entries=entries,
                commit=state.log.committed,
            )
        )
        progress.sent_commit = state.log.committed
        size_bytes = sum(entry.size_bytes() for entry in entries)
        progress.sent(previous_index + len(entries), size_bytes)
        return bool(entries)

    def _send_snapshot(self, replica_id: int, progress: Progress) -> None:
        """Point the follower to the newest snapshot; without one, a later heartbeat tries again."""
        state = self._state
        snapshot = state.log.snapshot()
        if snapshot is None or not progress.is_active:
            return
        progress.become_snapshot(snapshot.index)
        state.send(SnapshotRequest(state.replica_id, replica_id, state.term, snapshot))
