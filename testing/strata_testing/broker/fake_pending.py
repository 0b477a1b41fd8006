"""Delayed and half messages of the in-memory storage node: they wait until a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata.storage.v1 import storage_pb2
from strata_mq.layout import BatchView, PartKey, PartKind, PartView, pack_message_id

Name = tuple[int, int, int]
"""Raft group, index, ordinal."""

STORED_MS = 1_700_000_000_123
"""When this storage node stores whatever it is given."""

_KINDS = {
    PartKind.DELAYED: storage_pb2.PENDING_KIND_DELAYED,
    PartKind.HALF: storage_pb2.PENDING_KIND_HALF,
}


@dataclass
class Pending:
    """A message that waits."""

    key: PartKey
    due_ms: int
    data: bytes
    message_id: bytes
    checks: int = 0


class FakePending:
    """The part of a storage node that is about messages that wait.

    `place(key, pending)` stores one and returns its (queue, offset).
    """

    def __init__(self, place: Callable[[PartKey, Pending], tuple[int, int]]) -> None:
        self._place = place
        self._index = 0
        self._ids: dict[tuple[int, bytes], Name] = {}
        self.waiting: dict[Name, Pending] = {}
        # Raft groups that own nothing any more.
        self.refused_raft_groups: set[int] = set()
        self.refusals = 0
        # Outcomes of the next ends among several, the last one first.
        self.end_refusals: list[storage_pb2.Outcome.ValueType] = []
        self.is_old = False
        # None: dropped
        self.ended: dict[Name, tuple[int, int] | None] = {}

    def append_part(
        self, raft_group: int, view: BatchView, part: PartView
    ) -> storage_pb2.PartResult:
        """Keep a part's messages; ids that came before are duplicates."""
        if raft_group in self.refused_raft_groups:
            self.refusals += 1
            return storage_pb2.PartResult(outcome=storage_pb2.OUTCOME_WRONG_GROUP)
        self._index += 1
        result = storage_pb2.PartResult(outcome=storage_pb2.OUTCOME_OK)
        result.first_pending.index, result.first_pending.ordinal = self._index, part.first
        due_times = list(view.due_times(part.first, part.count))
        if part.key.kind is PartKind.HALF:
            due_times = [STORED_MS + after_ms for after_ms in due_times]
        at = part.messages_at
        for number, length in enumerate(view.lengths(part.first, part.count)):
            ordinal = part.first + number
            message_id = view.message_id(ordinal)
            data, at = view.data[at : at + length], at + length
            first = self.named(part.key.topic_id, message_id)
            if first is None:
                pending = Pending(part.key, due_times[number], data, message_id)
                self.waiting[raft_group, self._index, ordinal] = pending
                self._ids[part.key.topic_id, message_id] = (raft_group, self._index, ordinal)
            elif place := self.ended.get(first):
                result.duplicates.add(ordinal=number, queue=place[0], offset=place[1])
            else:
                duplicate = result.duplicates.add(ordinal=number)
                duplicate.pending.index, duplicate.pending.ordinal = first[1:]
        return result

    def named(self, topic_id: int, message_id: bytes) -> Name | None:
        """Find by id."""
        return self._ids.get((topic_id, message_id))

    def place_due(self) -> None:
        """Deliver every delayed message."""
        for name, pending in list(self.waiting.items()):
            if pending.key.kind is PartKind.DELAYED:
                self._end(name, placed=True)

    def end(self, request: storage_pb2.EndTransactionRequest) -> storage_pb2.EndTransactionResponse:
        """EndTransaction."""
        if request.halves:
            return self._end_all(request)
        name: Name | None = (request.raft_group, request.pending.index, request.pending.ordinal)
        if not request.HasField("pending"):
            name = self.named(request.topic_id, pack_message_id(request.message_id))
        commit = request.end != storage_pb2.TRANSACTION_END_ROLLBACK
        if name in self.waiting and self.waiting[name].key.kind is PartKind.HALF:
            if request.end == storage_pb2.TRANSACTION_END_GIVE_UP:
                assert request.dead_letter_topic_id, "a dead-letter topic is named"
            self._end(name, placed=commit)
        if name not in self.ended or commit != (self.ended[name] is not None):
            return storage_pb2.EndTransactionResponse(refusal=_INVALID)
        queue, offset = self.ended[name] or (0, 0)
        return storage_pb2.EndTransactionResponse(queue=queue, offset=offset)

    def _end_all(
        self, request: storage_pb2.EndTransactionRequest
    ) -> storage_pb2.EndTransactionResponse:
        """End several; a node of an older version does not know these."""
        if self.is_old:
            refusal = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_INVALID)
            return storage_pb2.EndTransactionResponse(refusal=refusal)
        response = storage_pb2.EndTransactionResponse()
        for half in request.halves:
            one = storage_pb2.EndTransactionRequest(
                raft_group=request.raft_group,
                topic_id=half.topic_id,
                end=half.end,
                message_id=half.message_id,
            )
            if half.HasField("pending"):
                one.pending.CopyFrom(half.pending)
            ended = self.end(one)
            outcome = ended.refusal.outcome or storage_pb2.OUTCOME_OK
            if self.end_refusals:
                outcome = self.end_refusals.pop()
            response.halves.add(outcome=outcome, queue=ended.queue, offset=ended.offset)
        return response

    def recall(self, request: storage_pb2.RecallRequest) -> storage_pb2.RecallResponse:
        """Recall; a stored message was always delivered."""
        name: Name | None = (request.raft_group, request.pending.index, request.pending.ordinal)
        if request.WhichOneof("what") is None:
            name = self.named(request.topic_id, pack_message_id(request.message_id))
            if name is not None and name[0] != request.raft_group:
                name = None
        pending = self.waiting.get(name) if name is not None else None
        if pending is None or pending.message_id != pack_message_id(request.message_id):
            return storage_pb2.RecallResponse(refusal=_INVALID)
        assert name is not None
        self._end(name, placed=False)
        return storage_pb2.RecallResponse()

    def list(self, request: storage_pb2.ListPendingRequest) -> storage_pb2.ListPendingResponse:
        """ListPending, strictly by (due, index, ordinal)."""
        response = storage_pb2.ListPendingResponse()
        after = (request.after_due_ms, request.after.index, request.after.ordinal)
        only: tuple[int, int] | bytes | None = None
        match request.WhichOneof("only"):
            case "pending":
                only = (request.pending.index, request.pending.ordinal)
            case "message_id":
                only = pack_message_id(request.message_id)
        if isinstance(only, bytes) and self.named(request.topic_id, only) is None:
            return storage_pb2.ListPendingResponse(refusal=_INVALID)
        rows = sorted(
            (
                ((pending.due_ms, *name[1:]), pending)
                for name, pending in self.waiting.items()
                if name[0] == request.raft_group
            ),
            key=lambda row: row[0],
        )
        for place, pending in rows:
            kind = _KINDS[pending.key.kind]
            if request.topic_id not in (0, pending.key.topic_id):
                continue
            if only is not None and only not in (place[1:], pending.message_id):
                continue
            if only is None and (request.kind not in (0, kind) or place <= after):
                continue
            if only is None and len(response.messages) == request.max_messages:
                break
            response.messages.add(
                pending=storage_pb2.PendingRef(index=place[1], ordinal=place[2]),
                kind=kind,
                topic_id=pending.key.topic_id,
                due_ms=pending.due_ms,
                check_count=pending.checks,
                store_time_ms=1_700_000_000_123,
                message=pending.data if request.with_messages else b"",
                packed_message_id=pending.message_id,
            )
        return response

    def _end(self, name: Name, *, placed: bool) -> None:
        pending = self.waiting.pop(name)
        self.ended[name] = self._place(pending.key, pending) if placed else None


_INVALID = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_INVALID_HANDLE)
