"""State of one replica in any role: term, vote, log, membership, and the effects so far.

Roles change this state and put messages into it; `take_effects` turns the changes of one event into
an `Effects` value. One rule is enforced here: a message may leave before the sync only if term and
vote are already durable. Otherwise a crash could make the replica contradict its message.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_raft.events import Effects, InstallSnapshot, ReadState, RoleChange
from strata_raft.log import RaftLog
from strata_raft.membership import Membership, decode_configuration
from strata_raft.messages import Message
from strata_raft.options import RaftOptions
from strata_raft.types import NO_REPLICA, Entry, EntryKind, HardState, Role, SnapshotMetadata


class ReplicaState:
    """The state that all roles of a replica share."""

    __slots__ = (
        "_messages",
        "_messages_after_sync",
        "_reads",
        "_reported",
        "_saved",
        "_saved_sequence",
        "_sequence",
        "_synced_sequence",
        "applied",
        "due_index",
        "install",
        "leader_id",
        "log",
        "membership",
        "options",
        "pre_votes_refused",
        "replica_id",
        "role",
        "term",
        "vote",
    )

    def __init__(
        self,
        replica_id: int,
        options: RaftOptions,
        log: RaftLog,
        *,
        membership: Membership,
        hard_state: HardState,
    ) -> None:
        self.replica_id = replica_id
        self.options = options
        self.log = log
        self.membership = membership
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader_id = NO_REPLICA
        self.role = Role.FOLLOWER
        # Up to where the owner has applied, and up to where one should have that is to lead.
        self.applied = 0
        self.due_index = 0
        # In a row, for the sake of this replica, without a leader in between.
        self.pre_votes_refused = 0
        self.install: InstallSnapshot | None = None
        self._messages: list[Message] = []
        self._messages_after_sync: list[Message] = []
        self._reads: list[ReadState] = []
        self._reported = (Role.FOLLOWER, self.term, NO_REPLICA)
        self._saved = (self.term, self.vote)
        self._saved_sequence = 0
        self._sequence = 0
        self._synced_sequence = 0

    def is_voter(self) -> bool:
        """Tell whether this replica counts in the configuration in force."""
        return self.membership.current.may_vote(self.replica_id)

    def may_campaign(self) -> bool:
        """Tell whether this replica may campaign; a learner or a truncated replica may not."""
        return self.membership.may_campaign(self.replica_id) and self.log.is_whole()

    def send(self, message: Message) -> None:
        """Send before the sync, unless term or vote are not durable."""
        self._messages.append(message)

    def send_after_sync(self, message: Message) -> None:
        """Send when everything up to now is durable."""
        self._messages_after_sync.append(message)

    def answer_reads(self, reads: Sequence[ReadState]) -> None:
        """Let these reads be served."""
        self._reads.extend(reads)

    def adopt_term(self, term: int, vote: int = NO_REPLICA) -> None:
        """Enter a later term: in it only `vote` has this replica's vote."""
        assert term > self.term
        self.term = term
        self.vote = vote

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries; configurations among them take effect (rule 12)."""
        self.log.append(entries)
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                self.membership.append(entry.index, decode_configuration(entry.payload))

    def truncate(self, index: int) -> None:
        """Forget entries from `index` on; their configurations are undone (rule 12)."""
        self.log.truncate(index)
        self.membership.truncate(index)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; return whether it moved."""
        moved = self.log.commit_to(index)
        if moved:
            # Entries that are not durable here may still be lost, so they must stay undoable.
            self.membership.commit_to(min(index, self.log.persisted))
        return moved

    def synced(self, sequence: int) -> None:
        """Everything given out up to `sequence` is durable."""
        self._synced_sequence = sequence
        self.log.synced(sequence)

    def write_failed(self) -> bool:
        """Nothing given out and not yet durable was kept; messages that waited are void.

        Returns:
            Whether a configuration was undone.
        """
        if self._saved_sequence > self._synced_sequence:
            self._saved = (-1, NO_REPLICA)
        self._synced_sequence = self._sequence
        first_lost = self.log.persisted + 1
        self.log.drop_unsynced()
        return self.membership.truncate(first_lost)

    def restore(self, snapshot: SnapshotMetadata) -> None:
        """Continue after an installed snapshot."""
        self.log.restore(snapshot)
        self.membership.restore(snapshot.index, snapshot.configuration)

    def take_effects(self) -> Effects:
        """Return what the event led to and start collecting anew."""
        log = self.log
        entries = log.take_unwritten()
        hard_state = None
        if self._saved != (self.term, self.vote):
            self._saved = (self.term, self.vote)
            hard_state = HardState(self.term, self.vote, log.committed)
        if entries or hard_state is not None:
            self._sequence += 1
            log.sync_started(self._sequence)
            if hard_state is not None:
                self._saved_sequence = self._sequence
        messages, after_sync = self._messages, self._messages_after_sync
        if self._saved_sequence > self._synced_sequence:
            messages, after_sync = [], messages + after_sync
        effects = Effects(
            messages=tuple(messages),
            hard_state=hard_state,
            entries=entries,
            sequence=self._sequence,
            messages_after_sync=tuple(after_sync),
            commit_index=log.committed,
            ready_index=min(log.committed, log.persisted),
            reads=tuple(self._reads),
            role_change=self._take_role_change(),
            install=self.install,
        )
        self.install = None
        if self._messages:
            self._messages = []
        if self._messages_after_sync:
            self._messages_after_sync = []
        if self._reads:
            self._reads = []
        return effects

    def _take_role_change(self) -> RoleChange | None:
        role = self.role
        if role is Role.FOLLOWER and not self.may_campaign():
            role = Role.LEARNER
        now = (role, self.term, self.leader_id)
        if now == self._reported:
            return None
        self._reported = now
        return RoleChange(*now)
