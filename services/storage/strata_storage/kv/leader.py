"""Writes of tables at one leader in one term: decided at once, answered when they can be read.

A batch of a broker is one log entry. Its answer is part of the entry, so that a repeat, at
whatever leader, gets it again and changes nothing (rule 1). A batch that changes nothing is not
written: its answer is given once the leader knows that it still leads, and a repeat of it is
decided anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_kv.commands import KvWrite, encode_kv_write
from strata_kv.decider import BatchDecision, Decider, WriteRefused
from strata_kv.machine import ItemExpiry, TableMachine
from strata_kv.names import QUEUE
from strata_mq.commands import DropKind
from strata_multiraft import LogFull, NotLeader, Overloaded, ReadOnly
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.translation import topic_of
from strata_storage.kv.failures import refusal_of_row
from strata_storage.kv.options import KvOptions
from strata_storage.kv.unread_items import UnreadItems
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.proposer import refusal_of
from strata_storage.rows.machine import GroupMachine

_NEVER_MS = (1 << 63) - 1

_Batch = tuple[int, int]
"""(broker boot id, sequence)."""


class KvLeader:
    """See the module docstring.

    Args:
        machine: of the raft group.
        tables: what is applied.
        leader: of the raft group.
        options: limits.
    """

    def __init__(
        self,
        machine: GroupMachine,
        tables: TableMachine,
        leader: GroupLeader,
        *,
        options: KvOptions,
    ) -> None:
        self._machine = machine
        self._tables = tables
        self._leader = leader
        self._proposer = leader.proposer
        self._options = options
        self._decider = Decider(tables, options.tables)
        # Answers that wait for their entry's rows; a repeat waits for the first one's.
        self._waiting: dict[_Batch, asyncio.Future[kv.WriteResponse]] = {}
        # Broker boot id -> sequence of its newest batch in flight.
        self._newest: dict[int, int] = {}
        # No item ends before, as far as it is known.
        self._floor_ms = 0
        self._next_expiry_ms = 0
        self._unread = UnreadItems(options.max_unread_items, options.unread_retry_ms)
        self._is_expiring = False

    def __len__(self) -> int:
        return len(self._waiting)

    def is_making(self, table_id: int) -> bool:
        """Whether a write of a table is in flight; it may be its first one."""
        return self._decider.changes(table_id)

    def end(self, refusal: Refused) -> None:
        """Refuse who waits: whether their entries are committed is unknown."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            _fail(future, refusal)

    async def write(self, request: kv.WriteRequest) -> kv.WriteResponse:
        """Carry out a batch.

        Raises:
            Refused: nothing was done; or, when leadership was lost, perhaps nothing.
        """
        batch = (request.broker_boot_id, request.sequence)
        answer = self._waiting.get(batch)
        if answer is None:
            row = self._tables.reply(request.broker_boot_id)
            done = 0 if row is None else row.sequence
            if request.sequence < max(done, self._newest.get(request.broker_boot_id, 0)):
                # Its answer would take the place of the later one's.
                raise Refused(pb.OUTCOME_INVALID, "a later batch of this broker is there already")
            if row is not None and request.sequence == row.sequence:
                return kv.WriteResponse.FromString(row.reply)
            decision, now_ms = self._decide(request.writes)
            response = kv.WriteResponse(results=decision.results)
            if not decision.sections:
                # It relies on what is in flight, and on nobody else leading.
                await self._proposer.applied()
                return response
            answer = self._submit(batch, decision, response, now_ms)
        # A caller that goes away must not take the answer from a repeat.
        return await asyncio.shield(answer)

    def _decide(self, writes: Sequence[kv.TableWrite]) -> tuple[BatchDecision, int]:
        """Return what becomes of requests, and the group time."""
        if len(self._waiting) >= self._options.max_batches_in_flight:
            limit = self._options.max_batches_in_flight
            raise Refused(pb.OUTCOME_OVERLOADED, f"{limit} batches of writes wait already")
        self._leader.check_ready()
        now_ms = self._proposer.now_ms()
        decision = BatchDecision()
        current_bytes = 0
        for write in writes:
            try:
                self._check_place(write)
                self._decider.write(decision, write.table.topic_id, write, now_ms)
            except WriteRefused as refused:
                result = kv.TableWriteResult(outcome=refused.outcome, reason=str(refused))
                decision.results.append(result)
            except StateError as failure:
                # An item that it names: the requests of others have nothing to do with that.
                refusal = refusal_of_row(failure)
                result = kv.TableWriteResult(outcome=refusal.outcome, reason=refusal.reason)
                decision.results.append(result)
            else:
                current_bytes = self._bound(decision.results, current_bytes)
        return decision, now_ms

    def _bound(self, results: list[kv.TableWriteResult], current_bytes: int) -> int:
        """Let the last request be tried again if what stood in its way has no room in the answer.

        Args:
            results: so far.
            current_bytes: of the items in the other ones.

        Returns:
            The same with the last one.
        """
        if not results[-1].HasField("current"):
            return current_bytes
        with_last_bytes = current_bytes + results[-1].ByteSize()
        if not current_bytes or with_last_bytes <= self._options.max_current_bytes:
            return with_last_bytes
        reason = "items that stand in the way of writes are too large for one answer: try again"
        results[-1] = kv.TableWriteResult(outcome=pb.OUTCOME_OVERLOADED, reason=reason)
        return current_bytes

    def _check_place(self, write: kv.TableWrite) -> None:
        topic = topic_of(write.table)
        is_dropped = (DropKind.TOPIC, topic.topic_id) in self._machine.dropped
        if is_dropped or not self._machine.owns_queue(topic, QUEUE):
            raise WriteRefused(pb.OUTCOME_WRONG_GROUP, "the table is not in this raft group")
        if self._leader.appends.is_sealed(topic.topic_id, QUEUE):
            # It was empty when it was sealed: its items are made where it goes on.
            raise WriteRefused(pb.OUTCOME_WRONG_GROUP, "the table moves to another raft group")

    def _submit(
        self, batch: _Batch, decision: BatchDecision, response: kv.WriteResponse, now_ms: int
    ) -> asyncio.Future[kv.WriteResponse]:
        """Propose a decision; return the future answer.

        Raises:
            Refused: nothing was proposed.
        """
        answer: asyncio.Future[kv.WriteResponse] = asyncio.get_running_loop().create_future()

        def applied() -> None:
            self._decider.applied(decision)
            # From now on a scan for what ends next finds it.
            self._note_end(decision)
            self._answered(batch)
            if not answer.done():
                answer.set_result(response)

        command = KvWrite(now_ms, *batch, _reply(response), decision.sections)
        entry = self._proposer.propose((encode_kv_write(command),), applied)
        self._decider.accept(decision)
        self._waiting[batch] = answer
        self._newest[batch[0]] = batch[1]
        entry.add_done_callback(partial(self._committed, batch))
        return answer

    def _committed(self, batch: _Batch, entry: asyncio.Future[int]) -> None:
        """Refuse who waits for an entry that will not be applied here, as far as is known."""
        failure = None if entry.cancelled() else entry.exception()
        if isinstance(failure, (NotLeader, Overloaded, ReadOnly, LogFull)):
            answer = self._answered(batch)
            if answer is not None:
                _fail(answer, refusal_of(failure))

    def _answered(self, batch: _Batch) -> asyncio.Future[kv.WriteResponse] | None:
        """Forget a batch that is in flight no more; return its answer, if somebody waits."""
        broker_boot_id, sequence = batch
        if self._newest.get(broker_boot_id) == sequence:
            del self._newest[broker_boot_id]
        return self._waiting.pop(batch, None)

    def _note_end(self, decision: BatchDecision) -> None:
        ends_ms = decision.next_expiry_ms
        if ends_ms:
            self._floor_ms = min(self._floor_ms, ends_ms)
            self._next_expiry_ms = min(self._next_expiry_ms, ends_ms)

    # Items whose time is over ---------------------------------------------------------------------

    def expire(self) -> int:
        """Propose the end of items whose time is over; return how many.

        Raises:
            Refused: not now; it is tried again.
            StateError: the same; none of those that are due could be read.
        """
        if self._is_expiring or not self._leader.ready:
            return 0
        now_ms, batch = self._proposer.now_ms(), self._options.expiry_batch
        again = self._unread.due(now_ms, batch // 2)
        due = self._due(now_ms, batch - len(again))
        if not due and not again:
            return 0
        decision = self._decider.expire([*again, *due])
        if decision.sections:
            self._propose_end(decision, now_ms)
        elif not decision.unread:
            # An entry in flight says what becomes of them.
            return 0
        self._passed(again, due, decision, now_ms)
        if not decision.sections:
            raise decision.unread[-1][1]
        return len(again) + len(due) - len(decision.unread)

    def _due(self, now_ms: int, limit: int) -> list[ItemExpiry]:
        """Return the next items whose time is over, without those that could not be read before."""
        if now_ms < self._next_expiry_ms:
            return []
        # Those may be where the scan begins.
        most = limit + len(self._unread)
        found = self._tables.expiries(self._floor_ms, now_ms + 1, most)
        due = [item for item in found if item not in self._unread][:limit]
        if not due:
            self._floor_ms = now_ms + 1
            first = self._tables.expiries(self._floor_ms, _NEVER_MS, 1)
            self._next_expiry_ms = first[0].expires_at_ms if first else _NEVER_MS
        return due

    def _propose_end(self, decision: BatchDecision, now_ms: int) -> None:
        """Propose the end of items.

        Raises:
            Refused: nothing was proposed.
        """

        def applied() -> None:
            self._decider.applied(decision)
            # An item may have been given more time.
            self._note_end(decision)
            self._is_expiring = False

        command = KvWrite(now_ms, 0, 0, b"", decision.sections)
        self._proposer.propose((encode_kv_write(command),), applied)
        self._decider.accept(decision)
        self._is_expiring = True

    def _passed(
        self,
        again: Sequence[ItemExpiry],
        due: Sequence[ItemExpiry],
        decision: BatchDecision,
        now_ms: int,
    ) -> None:
        """Let scans begin behind what was decided, not at the first key (rule 27).

        A write from now on may say otherwise, and so does an item that is not kept for later.
        """
        unread = [item for item, _ in decision.unread]
        for item in set(again).difference(unread):
            self._unread.discard(item)
        floor_ms = due[-1].expires_at_ms if due else self._floor_ms
        for item in unread:
            if not self._unread.add(item, now_ms):
                floor_ms = min(floor_ms, item.expires_at_ms)
        self._floor_ms = floor_ms


def _reply(response: kv.WriteResponse) -> bytes:
    """Return an answer as repeats get it: without the items that stood in the way."""
    if not any(result.HasField("current") for result in response.results):
        return response.SerializeToString()
    reply = kv.WriteResponse()
    reply.CopyFrom(response)
    for result in reply.results:
        result.ClearField("current")
    return reply.SerializeToString()


def _fail(answer: asyncio.Future[kv.WriteResponse], refusal: Refused) -> None:
    if not answer.done():
        answer.set_exception(refusal)
        # The caller may be gone: the failure is no news then.
        answer.exception()
