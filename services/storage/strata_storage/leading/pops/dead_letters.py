"""Messages whose attempts are used up go to the dead-letter topic of their consumer group.

The message is copied in the entry that removes its lease (rule 26), so it is in exactly one of
the two places. The copy keeps its stored bytes and all its columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import (
    CommandError,
    DropKind,
    PartResolution,
    encode_append,
    encode_dead_letter,
)
from strata_mq.layout import BatchBuilder, BatchError, BatchView, OutgoingMessage, PartKey, day_of
from strata_mq.leases import Lease, LeaseChange
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.pops.lease_calls import LeaseRef, invalid_handle
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.append_rows import find_append
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.payloads import PayloadReader

# Exhausted messages moved in one round, and when to try those again that could not be.
_MOVES_PER_ROUND = 64
_RETRY_MS = 1_000
_RETRY_UNREADABLE_MS = 60_000


Exhausted = tuple[LeaseSet, int, Lease]
"""(set, offset, lease) of a message whose attempts are used up."""


class _Move(NamedTuple):
    """Fate of a message, if the proposal for it is committed."""

    result: str
    future: asyncio.Future[int] | None = None


class DeadLetterMover:
    """Moves messages to dead-letter topics for one leader in one term."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        *,
        appender: GroupAppender,
        reader: MessageReader,
        payloads: PayloadReader,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sets = sets
        self._appender = appender
        self._reader = reader
        self._payloads = payloads
        # A round is under way: a second one must not copy its messages again.
        self._is_moving = False

    async def forward(
        self, ref: LeaseRef, dead_letter_topic_id: int, *, repeated: bool = False
    ) -> None:
        """Move a leased message at its consumer's wish.

        `repeated`: an earlier try may have done it; then there is nothing to do.

        Raises:
            Refused: OUTCOME_INVALID_HANDLE, OUTCOME_CORRUPT, or not now.
        """
        try:
            await self._forward(ref, dead_letter_topic_id, repeated=repeated)
        except Refused as refused:
            if refused.outcome == pb.OUTCOME_INVALID_HANDLE:
                # Only who still leads may say so: under another leader the handle may be good.
                await self._proposer.applied()
            raise

    async def _forward(self, ref: LeaseRef, dead_letter_topic_id: int, *, repeated: bool) -> None:
        lease_set = self._sets.find(ref.key)
        if lease_set is None:
            raise invalid_handle(ref)
        message = await self._read(lease_set, ref.offset)
        self._sets.check_open()
        # Meanwhile it may have been read anew.
        lease_set = self._sets.find(ref.key)
        if lease_set is None:
            raise invalid_handle(ref)
        lease, change = lease_set.leases.remove(
            ref.offset, ref.lease_number, ref.generation, self._proposer.now_ms()
        )
        if lease is None or change is None:
            leases = lease_set.leases
            # A reset may have brought it back since.
            gone = leases.is_consumed(ref.offset) or leases.generation != ref.generation
            if repeated and gone and await self._holds(dead_letter_topic_id, message.message_id):
                return
            raise invalid_handle(ref)
        await committed(self._propose(lease_set, change, dead_letter_topic_id, message))

    async def move_exhausted(self, exhausted: Sequence[Exhausted]) -> list[str]:
        """Move messages whose attempts are used up; one without dead-letter topic is dropped.

        A message that cannot be moved now stays and is tried again later.

        Returns:
            What became of each that was looked at: "moved", "dropped" (no dead-letter topic, or
            the message is gone), "busy" (somebody else was quicker), "unreadable" (damaged on
            disk) or "refused". None are looked at while another round is under way.
        """
        if self._is_moving:
            # The round before waits: for the log, or for a message to be read.
            self._revisit_all(exhausted, self._proposer.now_ms() + _RETRY_MS)
            return []
        now = exhausted[:_MOVES_PER_ROUND]
        self._is_moving = True
        self._revisit_all(exhausted[_MOVES_PER_ROUND:], 0)
        try:
            # All are proposed before any is waited for.
            moves = [await self._move(*move) for move in now]
            results = [await _outcome(move) for move in moves]
        finally:
            self._is_moving = False
        for (lease_set, _, _), result in zip(now, results, strict=True):
            if result in ("unreadable", "refused"):
                pause_ms = _RETRY_MS if result == "refused" else _RETRY_UNREADABLE_MS
                self._sets.revisit(lease_set, self._proposer.now_ms() + pause_ms)
        return results

    def _revisit_all(self, exhausted: Sequence[Exhausted], at_ms: int) -> None:
        for lease_set, _, _ in exhausted:
            self._sets.revisit(lease_set, at_ms)

    async def _move(self, lease_set: LeaseSet, offset: int, lease: Lease) -> _Move:
        try:
            return await self._propose_move(lease_set, offset, lease)
        except StateError:
            return _Move("unreadable")
        except Refused as refusal:
            unreadable = refusal.outcome == pb.OUTCOME_CORRUPT
            return _Move("unreadable" if unreadable else "refused")

    async def _propose_move(self, lease_set: LeaseSet, offset: int, lease: Lease) -> _Move:
        topic_id = lease.dead_letter_topic_id
        message: OutgoingMessage | None = None
        if topic_id and (DropKind.TOPIC, topic_id) not in self._machine.dropped:
            try:
                message = await self._read(lease_set, offset)
            except Refused as refusal:
                if refusal.outcome != pb.OUTCOME_INVALID_HANDLE:
                    raise
        self._sets.check_open()
        if self._sets.find(lease_set.key) is not lease_set:
            # Read anew, or gone, while the message was read; a new set is due by itself.
            return _Move("busy")
        change = lease_set.leases.drop_exhausted(offset)
        if change is None:
            return _Move("busy")
        if message is None:
            return _Move("dropped", self._sets.propose([(lease_set, change)]))
        return _Move("moved", self._propose(lease_set, change, topic_id, message))

    def _propose(
        self, lease_set: LeaseSet, change: LeaseChange, topic_id: int, message: OutgoingMessage
    ) -> asyncio.Future[int]:
        queue = self._machine.raft_group
        now_ms = self._proposer.now_ms()
        builder = BatchBuilder(google_crc32c.value)
        builder.add(PartKey(topic_id, queue, 0, 0), [message])

        def applied() -> None:
            lease_set.in_flight -= 1
            self._appender.applied_reserved(topic_id, queue)

        try:
            base_offset = self._appender.next_offset(topic_id, queue)
            head = encode_dead_letter(
                self._sets.encode([(lease_set, change)]),
                encode_append(now_ms, 0, 0, [PartResolution(queue, base_offset)]),
            )
            future = self._proposer.propose((head, builder.build()), applied)
        except (Refused, StateError):
            # The row is gone from memory but not from the log: read the set again.
            self._sets.reload(lease_set)
            raise
        self._sets.proposed(lease_set, change)
        self._appender.reserve(topic_id, queue, 1)
        return future

    async def _holds(self, topic_id: int, message_id: bytes) -> bool:
        """Whether a dead-letter topic holds a message, for as long as id rows are kept."""
        await self._proposer.applied()
        today = day_of(self._proposer.now_ms())
        ids = self._machine.rows.ids
        return any(ids.get(day, topic_id, message_id) for day in (today, today - 1))

    async def _read(self, lease_set: LeaseSet, offset: int) -> OutgoingMessage:
        """Read a message with its columns.

        Raises:
            Refused: OUTCOME_CORRUPT; OUTCOME_INVALID_HANDLE: it is below the queue's min offset.
        """
        _, topic_id, queue = lease_set.key
        run = self._machine.consume_queues.covering(topic_id, queue, offset)
        if run is None:
            raise Refused(pb.OUTCOME_INVALID_HANDLE, f"offset {offset} is not stored any more")
        base, row = run
        at, length, checksum = row.location(offset - base)
        try:
            payload = await self._payloads.read(row.raft_index)
        except Refused:
            if offset >= self._machine.tier.local_offset(topic_id, queue):
                raise
            place = Location(row.raft_index, at, length, checksum, topic_id, queue, offset)
            return await self._reader.outgoing(place)
        stored = payload[at : at + length]
        if google_crc32c.value(stored) != checksum:
            raise Refused(pb.OUTCOME_CORRUPT, f"entry {row.raft_index} is damaged on disk")
        return outgoing_message(payload, at, stored, checksum)


async def _outcome(move: _Move) -> str:
    """Wait until a move is committed; return what became of it."""
    if move.future is not None:
        try:
            await committed(move.future)
        except Refused:
            return "refused"
    return move.result


def outgoing_message(payload: bytes, at: int, stored: bytes, checksum: int) -> OutgoingMessage:
    """Return a message of an entry's payload with its columns.

    Raises:
        Refused: OUTCOME_CORRUPT, the payload holds no message at `at`.
    """
    try:
        batch_at = batch_of(payload)
        view = BatchView(payload[batch_at:], google_crc32c.value, verify=False)
        starts = {view.message_at(ordinal): ordinal for ordinal in range(view.message_count)}
        ordinal = starts[at - batch_at]
    except (CommandError, BatchError, KeyError) as error:
        raise Refused(pb.OUTCOME_CORRUPT, f"entry cannot be read: {error}") from error
    return OutgoingMessage(
        stored,
        checksum,
        view.tag_hashes(ordinal, 1)[0],
        view.group_hashes(ordinal, 1)[0],
        view.message_id(ordinal),
        view.message_types(ordinal, 1)[0],
        view.born_times(ordinal, 1)[0],
        [key_hash for _, key_hash in view.key_hashes(ordinal, 1)],
    )


def batch_of(payload: bytes) -> int:
    """Return where the append batch starts in the payload of an entry that stores messages.

    Raises:
        CommandError: it stores none.
    """
    found = find_append(payload)
    if found is None:
        raise CommandError("the entry stores no message")
    return found.command.batch_at
