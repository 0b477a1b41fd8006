"""Speculative state of the metadata leader, and the draft of one change on top of it (rule 1).

Speculative state = applied rows + the leader's own changes in flight. It is an overlay over the
store that holds only what is in flight, so a million topics cost no memory here. A draft is
decided without waiting; `stage` makes the next draft see it; `applied` forgets it once the store
has it; `reset` drops everything in flight when leadership is lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.rows import StoredRow, change_to, key_of, value_of
from strata_nameserver.state.access import AccessIndex
from strata_nameserver.state.answers import MAX_ANSWER_BYTES, KeptAnswers
from strata_nameserver.state.done_tombstones import DoneTombstones, TombstoneId
from strata_nameserver.state.removed_nodes import RemovedNodes
from strata_nameserver.state.topology import Topology
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import APPLIED_KEY, answer_key


def first_counters() -> command_pb2.Counters:
    """Return the counters of an empty store: ids start at 1, because 0 means "none"."""
    return command_pb2.Counters(
        next_topic_id=1, next_consumer_group_id=1, next_raft_group=1, next_replica_id=1
    )


def applied_state(store: MetadataStore) -> command_pb2.AppliedState:
    """Return the applied row, or that of an empty store."""
    value = store.get(APPLIED_KEY)
    if value is None:
        return command_pb2.AppliedState(counters=first_counters())
    return command_pb2.AppliedState.FromString(value)


class SpeculativeState:
    """Applied rows and what is in flight above them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # Key -> (revision that wrote it, bytes or None when deleted).
        self._overlay: dict[bytes, tuple[int, bytes | None]] = {}
        self._in_flight: dict[int, tuple[bytes, ...]] = {}
        self.counters = applied_state(store).counters
        self.topology = Topology.load(store)
        self.removed_nodes = RemovedNodes()
        self.done_tombstones = DoneTombstones.load(store)
        self.access = AccessIndex.load(store)
        self.answers = KeptAnswers.load(store)

    @property
    def changes_in_flight(self) -> int:
        """How many drafts are staged and not applied yet."""
        return len(self._in_flight)

    def get(self, key: bytes) -> bytes | None:
        """Return a row as it will stand when everything in flight is applied."""
        if key in self._overlay:
            return self._overlay[key][1]
        return self._store.get(key)

    def rows(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the rows from key `first` up to, not including, `end`, likewise; by key."""
        found = dict(self._store.scan(first, end))
        for key, (_, value) in self._overlay.items():
            if not first <= key < end:
                continue
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return [value for _, value in sorted(found.items())]

    def stage(self, draft: Draft) -> None:
        """Let later drafts see this one. The draft was proposed and follows the last one."""
        revision = draft.counters.revision
        assert revision == self.counters.revision + 1, "drafts are staged in order"
        keys = [key_of(change) for change in draft.changes]
        for key, change in zip(keys, draft.changes, strict=True):
            self._overlay[key] = (revision, value_of(change))
            self.topology.take(change)
            self.removed_nodes.take(change)
            self.done_tombstones.take(change)
            self.access.take(change)
        if draft.answered is not None:
            keys.append(answer_key(revision))
            self._overlay[keys[-1]] = (revision, draft.answered.SerializeToString())
            self.answers.take(revision, draft.answered)
        self.answers.forget(draft.forgotten_answers)
        self._in_flight[revision] = tuple(keys)
        self.counters = draft.counters

    def applied(self, revision: int, changes: Iterable[meta_pb2.Change]) -> None:
        """Forget what the store has now, if this leader staged it."""
        for change in changes:
            self.removed_nodes.take(change)
        for key in self._in_flight.pop(revision, ()):
            staged = self._overlay.get(key)
            if staged is not None and staged[0] == revision:
                del self._overlay[key]

    def reset(self) -> None:
        """Drop what is in flight and start from the applied rows."""
        self._overlay.clear()
        self._in_flight.clear()
        self.counters = applied_state(self._store).counters
        self.topology = Topology.load(self._store)
        self.done_tombstones = DoneTombstones.load(self._store)
        self.access = AccessIndex.load(self._store)
        self.answers = KeptAnswers.load(self._store)


class Draft:
    """One change in the making. A draft that is not staged leaves no trace.

    Attributes:
        changes: rows after the change.
        answered: the call that the change carries out; None: it has no id.
        forgotten_answers: revisions whose calls are forgotten; known once the draft is encoded.
    """

    def __init__(self, state: SpeculativeState, now_ms: int) -> None:
        self._state = state
        self.now_ms = now_ms
        self.changes: list[meta_pb2.Change] = []
        self.answered: command_pb2.AnsweredCall | None = None
        self.forgotten_answers: list[int] = []
        self.counters = command_pb2.Counters()
        self.counters.CopyFrom(state.counters)
        self.counters.revision += 1
        self._stamp_before = state.counters.stamp

    @property
    def removed_nodes(self) -> RemovedNodes:
        """Processes of storage nodes that may not come back."""
        return self._state.removed_nodes

    @property
    def revision(self) -> int:
        """The revision that this change will have."""
        return self.counters.revision

    @property
    def topology(self) -> Topology:
        """Nodes, raft groups and slots before this change."""
        return self._state.topology

    @property
    def access(self) -> AccessIndex:
        """Users, policies and cluster keys before this change."""
        return self._state.access

    def oldest_done_tombstones(self, count: int) -> list[TombstoneId]:
        """Return at most `count` tombstones that are done and not deleted by this change."""
        deleted = sum(change.deleted and change.HasField("tombstone") for change in self.changes)
        return self._state.done_tombstones.oldest(deleted, count)

    def get(self, key: bytes) -> bytes | None:
        """Return a row as it stands before this change."""
        return self._state.get(key)

    def rows(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the rows from key `first` up to, not including, `end`, likewise; by key."""
        return self._state.rows(first, end)

    def put(self, row: StoredRow) -> None:
        """Write a row; its revision becomes this change's."""
        row.revision = self.counters.revision
        self.changes.append(change_to(row))

    def delete(self, row: StoredRow) -> None:
        """Delete the row that has the key fields of `row`."""
        self.changes.append(change_to(row, deleted=True))

    def answer_to(self, call_id: bytes) -> tuple[int, command_pb2.AnsweredCall] | None:
        """Return a call that an earlier change carried out, with its revision; None: none did."""
        revision = self._state.answers.find(call_id, self.now_ms)
        row = None if revision is None else self._state.get(answer_key(revision))
        if revision is None or row is None:
            return None
        return revision, command_pb2.AnsweredCall.FromString(row)

    def remember(self, call_id: bytes, rpc: str, answer: bytes) -> None:
        """Keep the answer of the call that this change carries out, for its repeats."""
        self.answered = command_pb2.AnsweredCall(call_id=call_id, rpc=rpc, at_ms=self.now_ms)
        if len(answer) <= MAX_ANSWER_BYTES:
            self.answered.answer = answer

    def encode(self) -> bytes:
        """Return the command that the raft entry carries."""
        more = () if self.answered is None else (self.answered,)
        self.forgotten_answers = self._state.answers.surplus(self.now_ms, more)
        kept = len(self._state.answers) + len(more) - len(self.forgotten_answers)
        self.counters.answer_count = kept
        self.counters.stamp = self._stamp()
        return command_pb2.Command(
            changes=self.changes,
            counters=self.counters,
            answered=self.answered,
            forgotten_answers=self.forgotten_answers,
        ).SerializeToString()

    def _stamp(self) -> int:
        """Return what tells this revision from the same one of another history; never 0."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self._stamp_before.to_bytes(8))
        digest.update(self.now_ms.to_bytes(8))
        for change in self.changes:
            digest.update(change.SerializeToString(deterministic=True))
        return int.from_bytes(digest.digest()) or 1
