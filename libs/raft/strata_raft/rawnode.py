"""`RawNode`: one replica of one raft group, as a state machine without time, threads or I/O.

`step(event)` and `tick()` return `Effects`, to be done in order. Same inputs give same outputs.
This file decides the role that follows from a message or timer; the roles are in `follower.py`,
`candidate.py` and `leader.py`, their common state in `state.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_raft.candidate import Candidate
from strata_raft.events import (
    Campaign,
    ChangeMembership,
    Effects,
    EntriesFetched,
    Event,
    EventRefused,
    ForgetLeader,
    LogWriteFailed,
    PeerUnreachable,
    Persisted,
    Propose,
    Read,
    Receive,
    SnapshotInstalled,
    SnapshotSent,
    StepDown,
    TransferLeadership,
)
from strata_raft.follower import Follower
from strata_raft.leader import Leader
from strata_raft.log import LogReader, RaftLog
from strata_raft.membership import Membership
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    Message,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from strata_raft.options import RaftOptions
from strata_raft.progress import ReplicaProgress
from strata_raft.state import ReplicaState
from strata_raft.types import NO_REPLICA, Configuration, HardState, Role, SnapshotMetadata

# Then a replica that lags may lead: the replica that refused could not win.
_PRE_VOTES_REFUSED = 3


class RawNode:
    """One replica. Not safe for several threads; `step` is not re-entrant."""

    __slots__ = ("_election_timeout_ticks", "_leader", "_role", "_state")

    def __init__(
        self,
        replica_id: int,
        reader: LogReader,
        membership: Membership,
        *,
        election_timeout_ticks: Callable[[], int],
        hard_state: HardState | None = None,
        floor: tuple[int, int] = (0, 0),
        options: RaftOptions | None = None,
    ) -> None:
        """Start as a follower from what is durable.

        Args:
            replica_id: this replica, above 0, never reused (rule 8).
            reader: the stored log.
            membership: what the stored log says of it; the node changes it from now on. Its base
                is the raft group's first configuration, or that of the newest snapshot, or one
                without anybody for a replica that is to learn it from its leader.
            election_timeout_ticks: gives a fresh random timeout, at least
                `options.election_ticks`, each time one is needed.
            hard_state: the last one written.
            floor: (term, index) of the entry up to which the log was truncated to make room for a
                snapshot that may not have come (rule 8). The entries that this replica
                acknowledged before still bind it: until the log reaches the last of them it does
                not campaign, and votes only for a candidate that has it.
            options: settings; default ones if None.
        """
        if replica_id <= NO_REPLICA:
            raise ValueError("a replica id is above 0")
        hard_state = hard_state or HardState()
        self._state = ReplicaState(
            replica_id,
            options or RaftOptions(),
            RaftLog(reader, hard_state.commit, floor),
            membership=membership,
            hard_state=hard_state,
        )
        self._election_timeout_ticks = election_timeout_ticks
        self._leader: Leader | None = None
        self._role: Follower | Candidate | Leader = Follower(self._state, election_timeout_ticks())

    def step(self, event: Event) -> Effects:
        """Handle one event.

        Raises:
            Refused: the event is not possible now; nothing changed.
        """
        match event:
            case Persisted():
                self._state.synced(event.sequence)
                if self._leader is not None:
                    self._become(self._leader.persisted())
            case Propose():
                self._leading().propose(event.payloads)
            case Receive():
                self._receive(event.message)
            case Read():
                self._leading().read(event.context)
            case Campaign():
                self._campaign()
            case ForgetLeader() if isinstance(self._role, Follower):
                self._state.leader_id = NO_REPLICA
            case ForgetLeader():
                pass  # it counts on none
            case LogWriteFailed():
                self._write_failed()
            case SnapshotInstalled():
                self._snapshot_installed(event)
            case _:
                self._step_leader_only(event)
        return self._state.take_effects()

    def tick(self) -> Effects:
        """Let one unit of time pass."""
        self._become(self._role.tick())
        return self._state.take_effects()

    def quiesced(self) -> None:
        """Begin a time without ticks; a follower has just heard of its leader (rule 13)."""
        if isinstance(self._role, Follower):
            self._role.rests()

    # -- what can be asked ---------------------------------------------------------------------

    @property
    def replica_id(self) -> int:
        """This replica."""
        return self._state.replica_id

    @property
    def role(self) -> Role:
        """The role now; a follower that may not vote is a learner."""
        role = self._state.role
        return Role.LEARNER if role is Role.FOLLOWER and not self._state.may_campaign() else role

    @property
    def term(self) -> int:
        """The term now."""
        return self._state.term

    @property
    def leader_id(self) -> int:
        """The leader of this term; 0: not known."""
        return self._state.leader_id

    @property
    def configuration(self) -> Configuration:
        """The configuration in force, committed or not."""
        return self._state.membership.current

    @property
    def configuration_index(self) -> int:
        """The index of the entry that brought it; 0: the raft group began with it."""
        return self._state.membership.index

    @property
    def transfer_target(self) -> int:
        """The replica that the leadership is being handed to; 0: none."""
        return self._leader.transfer_target if self._leader is not None else NO_REPLICA

    def progress(self) -> tuple[ReplicaProgress, ...]:
        """Return how far followers and learners are; nothing unless this replica leads."""
        return self._leader.describe_progress() if self._leader is not None else ()

    @property
    def commit_index(self) -> int:
        """The index up to which entries are known to be committed."""
        return self._state.log.committed

    @property
    def last_index(self) -> int:
        """The index of the newest entry, synced or not."""
        return self._state.log.last_index

    @property
    def term_start_index(self) -> int:
        """The index of the no-op of this replica's own term of office; 0: it does not lead.

        Until it is applied the leader must not decide anything (rule 1).
        """
        return self._leader.term_start_index if self._leader is not None else 0

    def note_applied(self, applied: int) -> None:
        """Take note of the index up to which the owner has applied; leaders are told."""
        self._state.applied = applied

    def note_due(self, due_index: int) -> None:
        """Take note of the index that a replica should have applied to be fit to lead.

        Args:
            due_index: what has been committed for a while; 0: this replica should not lead now,
                whoever else does.
        """
        self._state.due_index = due_index

    def needs_snapshot(self, snapshot: SnapshotMetadata) -> bool:
        """Tell whether a snapshot's data still bring something.

        To be asked right before they replace the store: entries that arrived meanwhile may have
        been acknowledged, and installing an older state over them would lose them.
        """
        log = self._state.log
        return snapshot.index > log.committed and not log.matches(snapshot.index, snapshot.term)

    # -- events ----------------------------------------------------------------------------------

    def _leading(self) -> Leader:
        if self._leader is None:
            raise EventRefused(f"replica {self.replica_id} does not lead")
        return self._leader

    def _step_leader_only(self, event: Event) -> None:
        match event:
            case TransferLeadership():
                self._leading().transfer(event.target)
            case StepDown():
                self._become(self._leading().step_down(event.successor))
            case ChangeMembership():
                self._leading().change_membership(event.voters, event.learners)
            case _ if self._leader is None:
                pass  # news about followers that are no longer this replica's
            case EntriesFetched():
                self._leader.entries_fetched()
            case PeerUnreachable():
                self._leader.peer_unreachable(event.replica_id)
            case SnapshotSent():
                self._leader.snapshot_sent(event.replica_id, delivered=event.delivered)

    def _campaign(self) -> None:
        if not self._state.may_campaign():
            raise EventRefused(f"replica {self.replica_id} is not a voter")
        if self._leader is None:
            self._become(Role.PRE_CANDIDATE)

    def _write_failed(self) -> None:
        undone = self._state.write_failed()
        if self._leader is None:
            self._become(Role.FOLLOWER)
        else:
            self._become(self._leader.write_failed(configuration_undone=undone))

    def _snapshot_installed(self, event: SnapshotInstalled) -> None:
        if not isinstance(self._role, Follower):
            self._become(Role.FOLLOWER)
        assert isinstance(self._role, Follower)
        self._role.installed(event.snapshot, event.leader_id)

    # -- messages --------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        state = self._state
        if message.target != state.replica_id:
            return  # meant for an earlier life of this node (rule 8)
        if message.term < state.term:
            self._answer_stale(message)
            return
        if message.term > state.term and not self._enter_later_term(message):
            return
        if isinstance(message, VoteRequest):
            self._answer_vote_request(message)
            return
        if isinstance(message, (AppendRequest, Heartbeat, SnapshotRequest)):
            assert self._leader is None, f"two leaders in term {message.term}: election safety"
            if not isinstance(self._role, Follower):
                self._become(Role.FOLLOWER)
        self._become(self._role.receive(message), transfer=isinstance(message, TimeoutNow))

    def _enter_later_term(self, message: Message) -> bool:
        """Follow a later term; return False when the message must be ignored instead."""
        if isinstance(message, VoteRequest):
            if self._hears_leader() and not message.transfer:
                return False  # a replica that was cut off must not depose a working leader
            if message.pre_vote:
                return True
        if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            return True
        self._state.adopt_term(message.term)
        self._become(Role.FOLLOWER)
        return True

    def _hears_leader(self) -> bool:
        if self._leader is not None:
            return True
        return isinstance(self._role, Follower) and self._role.hears_leader()

    def _answer_stale(self, message: Message) -> None:
        """Tell an old leader or candidate the term; answers of old terms mean nothing."""
        state = self._state
        if isinstance(message, (AppendRequest, Heartbeat, SnapshotRequest)):
            state.send_after_sync(
                AppendResponse(state.replica_id, message.source, state.term, 0, rejected=True)
            )
        elif isinstance(message, VoteRequest):
            state.send_after_sync(
                VoteResponse(
                    state.replica_id, message.source, state.term, False, pre_vote=message.pre_vote
                )
            )

    def _answer_vote_request(self, request: VoteRequest) -> None:
        """Vote once per term, only for a log that is at least as up to date (thesis 3.4, 3.6.1)."""
        state = self._state
        is_free = (
            state.vote == request.source
            or (state.vote == NO_REPLICA and state.leader_id == NO_REPLICA)
            or (request.pre_vote and request.term > state.term)
        )
        granted = is_free and state.log.is_at_least(request.last_index, request.last_term)
        if granted and request.pre_vote and self._is_fitter_than(request):
            granted = False
        if granted and not request.pre_vote:
            state.vote = request.source
            if isinstance(self._role, Follower):
                self._role.voted()
        state.send_after_sync(
            VoteResponse(
                source=state.replica_id,
                target=request.source,
                term=request.term if granted else state.term,
                granted=granted,
                pre_vote=request.pre_vote,
            )
        )

    def _is_fitter_than(self, request: VoteRequest) -> bool:
        """Tell whether this replica should lead instead of the pre-candidate; then it will try.

        A replica that has rows to rebuild would be silent until then (rule 1). A pre-vote is
        refused only if this replica could win wherever the other could, and only a few times: some
        replica must lead.
        """
        state = self._state
        if (
            not request.applied < state.due_index <= state.applied
            or state.pre_votes_refused >= _PRE_VOTES_REFUSED
            or not state.may_campaign()
            or (state.log.last_term, state.log.last_index) < (request.last_term, request.last_index)
        ):
            return False
        state.pre_votes_refused += 1
        if isinstance(self._role, Follower):
            self._role.wants_to_lead()
        return True

    # -- roles -----------------------------------------------------------------------------------

    def _become(self, role: Role | None, *, transfer: bool = False) -> None:
        """Take a role, and the next one if that is decided at once, as for a sole voter."""
        state = self._state
        while role is not None:
            state.role = role
            state.leader_id = NO_REPLICA
            self._leader = None
            timeout_ticks = self._election_timeout_ticks()
            match role:
                case Role.PRE_CANDIDATE:
                    self._role = campaign = Candidate(state, timeout_ticks, pre_vote=True)
                    role = campaign.start(transfer=False)
                case Role.CANDIDATE:
                    state.adopt_term(state.term + 1, vote=state.replica_id)
                    self._role = campaign = Candidate(state, timeout_ticks, pre_vote=False)
                    role = campaign.start(transfer=transfer)
                case Role.LEADER:
                    state.leader_id = state.replica_id
                    self._role = self._leader = Leader(state)
                    self._leader.start()
                    role = None
                case _:
                    self._role = Follower(state, timeout_ticks)
                    role = None
