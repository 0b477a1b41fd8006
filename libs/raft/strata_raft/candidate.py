"""A replica that campaigns, first for pre-votes, then for votes (thesis 3.4, 9.6)."""

from __future__ import annotations

from strata_raft.messages import Message, VoteRequest, VoteResponse
from strata_raft.quorum import VoteResult, vote_result
from strata_raft.state import ReplicaState
from strata_raft.types import Role


class Candidate:
    """One campaign. Its methods return the role to take next, or None to keep waiting.

    A pre-vote campaign changes nothing that lasts: it asks who would vote in the next term. A real
    one has already entered that term and voted for itself; its requests leave after that is
    durable.
    """

    __slots__ = ("_pre_vote", "_state", "_ticks", "_timeout_ticks", "_votes")

    def __init__(self, state: ReplicaState, timeout_ticks: int, *, pre_vote: bool) -> None:
        self._state = state
        self._timeout_ticks = timeout_ticks
        self._pre_vote = pre_vote
        self._ticks = 0
        self._votes: dict[int, bool] = {state.replica_id: True}

    def start(self, *, transfer: bool) -> Role | None:
        """Ask the other voters; a sole voter has won already."""
        outcome = self._outcome()
        if outcome is not None:
            return outcome
        state = self._state
        configuration = state.membership.current
        for voter in sorted((configuration.voters | configuration.outgoing) - {state.replica_id}):
            request = VoteRequest(
                source=state.replica_id,
                target=voter,
                term=state.term + 1 if self._pre_vote else state.term,
                last_index=state.log.last_index,
                last_term=state.log.last_term,
                pre_vote=self._pre_vote,
                transfer=transfer,
                applied=state.applied,
            )
            state.send(request)
        return None

    def tick(self) -> Role | None:
        """Begin again with pre-votes when no replica won in time."""
        self._ticks += 1
        return Role.PRE_CANDIDATE if self._ticks >= self._timeout_ticks else None

    def receive(self, message: Message) -> Role | None:
        """Count a vote; any other message of this term changes nothing."""
        if not isinstance(message, VoteResponse) or message.pre_vote is not self._pre_vote:
            return None
        if message.granted and message.term != self._state.term + int(self._pre_vote):
            return None
        self._votes.setdefault(message.source, message.granted)
        return self._outcome()

    def _outcome(self) -> Role | None:
        match vote_result(self._state.membership.current, self._votes):
            case VoteResult.WON:
                return Role.CANDIDATE if self._pre_vote else Role.LEADER
            case VoteResult.LOST:
                return Role.FOLLOWER
            case VoteResult.PENDING:
                return None
