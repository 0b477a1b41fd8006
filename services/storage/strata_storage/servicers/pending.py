"""The part of `strata.storage.v1.StorageService` that is about messages that wait.

Protobuf to engine calls and back, as `servicer` does for the rest. No decision is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.layout import PartKind, PendingKey, PendingRef, pack_message_id
from strata_state.ports import StateError
from strata_storage.base.disk_guard import DiskGuard, DiskMark
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.group.engines import Engines
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pending.resolver import DELIVERING, Place
from strata_storage.leading.pending.transactions import HalfEnd
from strata_storage.reads.listing import PendingPage, PendingQuery
from strata_storage.upkeep.instruments import Instruments

_KINDS = {
    pb.PENDING_KIND_UNSPECIFIED: None,
    pb.PENDING_KIND_DELAYED: PartKind.DELAYED,
    pb.PENDING_KIND_HALF: PartKind.HALF,
}
_KIND_NUMBERS = {
    PartKind.DELAYED: pb.PENDING_KIND_DELAYED,
    PartKind.HALF: pb.PENDING_KIND_HALF,
}


class PendingServicer:
    """EndTransaction, ReportChecks, Recall and ListPending; base of the service's handler."""

    def __init__(self, engines: Engines, instruments: Instruments, disk: DiskGuard) -> None:
        self._engines = engines
        self._instruments = instruments
        self._disk = disk

    async def end_transaction(
        self, request: pb.EndTransactionRequest, context: CallContext
    ) -> pb.EndTransactionResponse:
        """Commit, roll back or give up a half message, or end several."""
        response = pb.EndTransactionResponse()
        engine = self._engines.engine(request.raft_group)
        if request.halves:
            for outcome in await self._end_halves(engine, request.halves):
                response.halves.append(outcome)
            return response
        try:
            place = await _end(self._deciding(engine), request)
        except Refused as refused:
            if refused.outcome != pb.OUTCOME_INVALID_HANDLE:
                raise
            # Its rows may be on their way to the store (rule 3): what is wrong stays wrong.
            await engine.barrier()
            place = await _end(self._deciding(engine), request)
        if place is not None:
            response.queue, response.offset = place.queue, place.offset
        return response

    async def _end_halves(
        self, engine: GroupEngine, halves: Sequence[pb.HalfEnd]
    ) -> list[pb.HalfOutcome]:
        ends = [_half_end(half) for half in halves]
        outcomes = await self._deciding(engine).pending.transactions.end_all(ends)
        wrong = [number for number, outcome in enumerate(outcomes) if _is_wrong(outcome)]
        if wrong:
            # As for a single one.
            await engine.barrier()
            again = [ends[number] for number in wrong]
            second = await self._deciding(engine).pending.transactions.end_all(again)
            for number, outcome in zip(wrong, second, strict=True):
                outcomes[number] = outcome
        return list(map(_outcome_of, outcomes))

    async def report_checks(
        self, request: pb.ReportChecksRequest, context: CallContext
    ) -> pb.ReportChecksResponse:
        """Count the transaction checks that a producer was given."""
        for check in request.checks:
            # Where it cannot be counted, the half is checked once more.
            with suppress(Refused, StateError):
                leader = self._deciding(self._engines.engine(check.raft_group))
                name = PendingRef(check.pending.index, check.pending.ordinal)
                leader.pending.transactions.given(name, check.check_count)
        return pb.ReportChecksResponse()

    async def recall(self, request: pb.RecallRequest, context: CallContext) -> pb.RecallResponse:
        """Take back a message that nobody got yet."""
        response = pb.RecallResponse()
        name: PendingRef | Place | None = None
        if request.HasField("pending"):
            name = PendingRef(request.pending.index, request.pending.ordinal)
        elif request.HasField("position"):
            name = Place(request.topic_id, request.position.queue, request.position.offset)
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        leader = self._deciding(engine)
        message_id = pack_message_id(request.message_id)
        await leader.pending.recalls.recall(name, request.topic_id, message_id)
        return response

    async def list_pending(
        self, request: pb.ListPendingRequest, context: CallContext
    ) -> pb.ListPendingResponse:
        """Return delayed and half messages by due time, a page at a time."""
        response = pb.ListPendingResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier(proposed_too=bool(request.message_id))
        query, only = _query(request), _only(engine.leading(), request)
        if isinstance(only, PendingRef):
            page = await engine.pending_list.one(query, only)
        elif only is not None:
            # It has its place: it does not wait.
            page = PendingPage((), None)
        else:
            page = await engine.pending_list.page(query)
        _fill_page(response, page)
        return response

    def _deciding(self, engine: GroupEngine) -> GroupLeader:
        leader = engine.leading()
        engine.check_disk(self._disk, DiskMark.REFUSE_ALL_BUT_ACKS)
        leader.check_ready()
        return leader


async def _end(leader: GroupLeader, request: pb.EndTransactionRequest) -> Place | None:
    """End a half as the request says; return where it is then.

    Raises:
        Refused: see `Transactions`.
    """
    transactions, name = leader.pending.transactions, _half_name(leader, request)
    if request.end == pb.TRANSACTION_END_COMMIT:
        return await transactions.commit(name, request.topic_id)
    if request.end == pb.TRANSACTION_END_ROLLBACK:
        await transactions.roll_back(name, request.topic_id)
        return None
    if request.end == pb.TRANSACTION_END_GIVE_UP:
        dead_letter_topic_id = request.dead_letter_topic_id
        return await transactions.give_up(name, request.topic_id, dead_letter_topic_id)
    raise Refused(pb.OUTCOME_INVALID, "a transaction is committed, rolled back or given up")


def _half_end(half: pb.HalfEnd) -> HalfEnd:
    """Return how a half ends.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    if half.end not in (pb.TRANSACTION_END_COMMIT, pb.TRANSACTION_END_ROLLBACK):
        raise Refused(pb.OUTCOME_INVALID, "several transactions are committed or rolled back")
    is_commit = half.end == pb.TRANSACTION_END_COMMIT
    if half.HasField("pending"):
        ref = PendingRef(half.pending.index, half.pending.ordinal)
        return HalfEnd(ref, b"", half.topic_id, is_commit)
    return HalfEnd(None, pack_message_id(half.message_id), half.topic_id, is_commit)


def _is_wrong(outcome: Place | Refused | None) -> bool:
    return isinstance(outcome, Refused) and outcome.outcome == pb.OUTCOME_INVALID_HANDLE


def _outcome_of(outcome: Place | Refused | None) -> pb.HalfOutcome:
    if isinstance(outcome, Refused):
        return pb.HalfOutcome(outcome=outcome.outcome)
    if outcome is None:
        return pb.HalfOutcome(outcome=pb.OUTCOME_OK)
    return pb.HalfOutcome(outcome=pb.OUTCOME_OK, queue=outcome.queue, offset=outcome.offset)


def _half_name(leader: GroupLeader, request: pb.EndTransactionRequest) -> PendingRef | Place:
    if request.HasField("pending"):
        return PendingRef(request.pending.index, request.pending.ordinal)
    message_id = pack_message_id(request.message_id)
    return leader.pending.resolver.name_of(request.topic_id, message_id)


def _only(leader: GroupLeader, request: pb.ListPendingRequest) -> PendingRef | Place | None:
    only = request.WhichOneof("only")
    if only == "pending":
        return PendingRef(request.pending.index, request.pending.ordinal)
    if only == "message_id":
        message_id = pack_message_id(request.message_id)
        return leader.pending.resolver.name_of(request.topic_id, message_id)
    return None


def _query(request: pb.ListPendingRequest) -> PendingQuery:
    """Return what to list.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    if request.kind not in _KINDS:
        raise Refused(pb.OUTCOME_INVALID, f"there is no kind {request.kind}")
    after = None
    if request.after_due_ms or request.HasField("after"):
        after = PendingKey(request.after_due_ms, request.after.index, request.after.ordinal)
    return PendingQuery(
        _KINDS[request.kind], request.topic_id, after, request.max_messages, request.with_messages
    )


def _fill_page(response: pb.ListPendingResponse, page: PendingPage) -> None:
    for key, row, message in page.messages:
        response.messages.add(
            pending=pb.PendingRef(index=key.raft_index, ordinal=key.ordinal),
            kind=_KIND_NUMBERS[row.kind],
            topic_id=row.topic_id,
            due_ms=key.due_ms,
            # One that is to be delivered is not checked any more.
            check_count=0 if row.checks == DELIVERING else row.checks,
            store_time_ms=row.store_time_ms,
            message=message,
            packed_message_id=row.message_id,
        )
    if page.next_after is not None:
        due_ms, raft_index, ordinal = page.next_after
        response.next_after_due_ms = due_ms
        response.next_after.index, response.next_after.ordinal = raft_index, ordinal
