"""Messages of one leader that are on their way to another raft group (rules 17, 18).

A message that is to be delivered while no queue of its topic is open here is appended where one of
them is open now, after that was written down. Its row stays until that is confirmed; after a
failure it is put off, so that what waits for a queue fills no memory.

A raft group that did not answer may have the message. So the message goes nowhere else, not even to
a queue that is open here again, until that raft group has it or says that it does not. This is
known to one leader in one term; the next leader starts with the present place of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import CommandError, DropKind
from strata_mq.layout import (
    MAX_BATCH_BYTES,
    BatchError,
    BatchView,
    OutgoingMessage,
    PartKey,
    PendingKey,
    PendingRef,
)
from strata_runtime.logs import get_logger
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.forwarding import ForwardFailed, QueueForwarder
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.resolver import DELIVERING, End, Place, Resolver, Waiting
from strata_storage.leading.pending.retry_slots import RetrySlots
from strata_storage.leading.pops.dead_letters import batch_of
from strata_storage.leading.proposer import Proposer
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.payloads import PayloadReader

_BATCH_MESSAGES = 256
# Columns of a message beside its stored bytes, roughly.
_OVERHEAD_BYTES = 256
# Pause of a message for which there was only no room; others make some soon.
_ROOM_MS = 100


class Forward(NamedTuple):
    """A message and where it goes: a queue of its topic in another raft group."""

    raft_group: int
    key: PartKey
    waiting: Waiting


class Forwards:
    """See the module docstring.

    Args:
        machine, proposer, resolver: of the leader.
        payloads: reads what is forwarded.
        forwarder: brings it there; None: there is no other node, it waits for a queue here.
        options: limits.
        instruments: counters.

    Attributes:
        on_returned: told the key of a message about which nothing could be decided.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        resolver: Resolver,
        *,
        payloads: PayloadReader,
        forwarder: QueueForwarder | None,
        options: PendingOptions,
        instruments: PendingInstruments,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._resolver = resolver
        self._payloads = payloads
        self._forwarder = forwarder
        self._options = options
        self._forwards_total = instruments.forwards
        self._in_flight = 0
        self._in_flight_bytes = 0
        # Where messages that still wait here may be already.
        self._sent: dict[PendingRef, tuple[int, PartKey]] = {}
        self._slots = RetrySlots(options.forwards_max)
        self.on_returned: Callable[[PendingKey], None] = lambda key: None
        self._logger = get_logger("storage")

    def __len__(self) -> int:
        return self._in_flight

    @property
    def in_flight_bytes(self) -> int:
        """Stored bytes of the messages on their way."""
        return self._in_flight_bytes

    @property
    def unanswered(self) -> int:
        """Messages that may be in another raft group already."""
        return len(self._sent)

    # Deciding -----------------------------------------------------------------------------------

    def begin(self, waiting: Waiting) -> None:
        """Write down that a message is to be delivered, before it is sent anywhere.

        Another leader, whose clock may be behind this one's, could else let it be recalled while
        it is on its way, or after it has arrived (rule 38).

        Raises:
            Refused: not now.
        """
        if self._forwarder is None:
            self.reschedule(waiting)
        else:
            self._resolver.reschedule(waiting, self._proposer.now_ms(), DELIVERING)

    def plan(self, waiting: Waiting) -> Forward | None:
        """Return where a message goes, counted as being on its way; None: nowhere now.

        That it is to be delivered is written already: nobody recalls it any more.
        """
        forwarder, row = self._forwarder, waiting.row
        if forwarder is None or not self._has_room(row.length):
            return None
        sent = self._sent.get(waiting.key.ref)
        if sent is not None:
            return self._counted(Forward(*sent, waiting))
        if len(self._sent) + self._in_flight >= self._options.forwards_unanswered_max:
            return None
        for queue in _queues_away(waiting):
            move = self._machine.moves.get((row.topic_id, queue))
            moved_to = 0 if move is None else move.destination
            raft_group = forwarder.holder(row.topic_id, queue, row.slot_base, moved_to)
            if raft_group not in (0, self._machine.raft_group):
                key = PartKey(row.topic_id, queue, row.slot_base, row.queue_count)
                return self._counted(Forward(raft_group, key, waiting))
            # It comes back and is not open yet, or its slot changes hands right now.
        return None

    def _has_room(self, size_bytes: int) -> bool:
        options = self._options
        return not self._in_flight or (
            self._in_flight < options.forwards_max
            and self._in_flight_bytes + size_bytes <= options.forward_bytes_max
        )

    def _counted(self, forward: Forward) -> Forward:
        self._in_flight += 1
        self._in_flight_bytes += forward.waiting.row.length
        return forward

    def reschedule(self, waiting: Waiting, *, failed: bool = False) -> None:
        """Let a message that is to be delivered wait for a queue, or for room on the way to it.

        Args:
            waiting: the message.
            failed: it was sent, and nothing is known of it.

        Raises:
            Refused: not now.
        """
        is_full = not failed and not self._has_room(waiting.row.length)
        interval_ms = _ROOM_MS if is_full else self._options.retry_ms
        due_ms = self._slots.next(self._proposer.now_ms(), interval_ms)
        self._resolver.reschedule(waiting, due_ms, DELIVERING)

    def may_have_arrived(self, ref: PendingRef) -> bool:
        """Whether a message was sent to a raft group that has not answered for it."""
        return ref in self._sent

    def ended(self, ref: PendingRef) -> None:
        """Forget where a message was sent: it waits no more."""
        self._sent.pop(ref, None)

    def forget_dropped(self) -> None:
        """Forget the messages of topics that were dropped."""
        dropped = self._machine.dropped
        self._sent = {
            ref: (raft_group, key)
            for ref, (raft_group, key) in self._sent.items()
            if (DropKind.TOPIC, key.topic_id) not in dropped
        }

    def batches(self, forwards: Sequence[Forward]) -> list[list[Forward]]:
        """Split what goes out by destination, and to the size of an append batch."""
        batches: list[list[Forward]] = []
        by_queue = sorted(forwards, key=lambda forward: forward[:2])
        for _, group in groupby(by_queue, key=lambda forward: forward[:2]):
            batch: list[Forward] = []
            size_bytes = 0
            for forward in group:
                message_bytes = forward.waiting.row.length + _OVERHEAD_BYTES
                if batch and (
                    len(batch) == _BATCH_MESSAGES or size_bytes + message_bytes > MAX_BATCH_BYTES
                ):
                    batches.append(batch)
                    batch, size_bytes = [], 0
                batch.append(forward)
                size_bytes += message_bytes
            batches.append(batch)
        return batches

    # Performing ---------------------------------------------------------------------------------

    async def perform(self, batch: Sequence[Forward]) -> None:
        """Bring messages of one queue to its raft group; decide what follows from it.

        A message that cannot be read is put off, and keeps no other one from being sent (rule 33).
        """
        try:
            read: list[Forward] = []
            unread: list[Forward] = []
            messages: list[OutgoingMessage] = []
            for forward in batch:
                message = await self._try_read(forward)
                if message is None:
                    unread.append(forward)
                else:
                    read.append(forward)
                    messages.append(message)
            if unread:
                self._put_off(unread)
            if read:
                await self._send(read, messages)
        finally:
            self._in_flight -= len(batch)
            self._in_flight_bytes -= sum(forward.waiting.row.length for forward in batch)

    async def _send(self, batch: Sequence[Forward], messages: Sequence[OutgoingMessage]) -> None:
        assert self._forwarder is not None, "nothing is planned without a forwarder"
        for raft_group, key, waiting in batch:
            self._sent[waiting.key.ref] = (raft_group, key)
        try:
            places = await self._forwarder.forward(batch[0].raft_group, batch[0].key, messages)
        except (ForwardFailed, Refused, StateError) as error:
            self._tell_of(batch[0], error)
            self._put_off(batch)
            return
        arrived = sum(place is not None for place in places)
        self._forwards_total.add(arrived, {"result": "ok"})
        self._forwards_total.add(len(batch) - arrived, {"result": "failed"})
        for forward, place in zip(batch, places, strict=True):
            if place is None:
                # It may go elsewhere.
                self.ended(forward.waiting.key.ref)
        self._settle(batch, places)

    def _put_off(self, batch: Sequence[Forward]) -> None:
        self._forwards_total.add(len(batch), {"result": "failed"})
        self._settle(batch, [None] * len(batch))

    def _tell_of(self, forward: Forward, error: Exception) -> None:
        self._logger.info(
            "forward waits",
            raft_group=self._machine.raft_group,
            to=forward.raft_group,
            reason=str(error),
        )

    def _settle(self, batch: Sequence[Forward], places: Sequence[Place | None]) -> None:
        for forward, place in zip(batch, places, strict=True):
            try:
                waiting = self._resolver.find_due(forward.waiting.key)
                if waiting is None:
                    # It went with its topic meanwhile.
                    self.ended(forward.waiting.key.ref)
                elif place is None:
                    self.reschedule(waiting, failed=True)
                else:
                    self._resolver.discard(waiting, End.FORWARDED)
            except (Refused, StateError):
                self.on_returned(forward.waiting.key)

    async def _try_read(self, forward: Forward) -> OutgoingMessage | None:
        """Read a message; None: it cannot be read now."""
        try:
            return await self._read(forward.waiting)
        except (Refused, StateError) as error:
            self._tell_of(forward, error)
            return None

    async def _read(self, waiting: Waiting) -> OutgoingMessage:
        """Read a message with its columns.

        Raises:
            Refused: OUTCOME_CORRUPT.
        """
        key, row = waiting
        payload = await self._payloads.read(key.raft_index)
        stored = payload[row.message_at : row.message_at + row.length]
        if google_crc32c.value(stored) != row.checksum:
            raise Refused(pb.OUTCOME_CORRUPT, f"entry {key.raft_index} is damaged on disk")
        try:
            view = BatchView(payload[batch_of(payload) :], google_crc32c.value, verify=False)
        except (CommandError, BatchError) as error:
            raise Refused(pb.OUTCOME_CORRUPT, f"entry cannot be read: {error}") from error
        return OutgoingMessage(
            stored,
            row.checksum,
            row.tag_hash,
            row.group_hash,
            row.message_id,
            view.message_types(key.ordinal, 1)[0],
            view.born_times(key.ordinal, 1)[0],
            row.key_hashes,
        )


def _queues_away(waiting: Waiting) -> Sequence[int]:
    """Return the message's queue; if it has none, those of its topic, the same first every time.

    A repeat goes where the message may be already, as long as queues stay where they are.
    """
    (_, raft_index, ordinal), row = waiting
    if row.queue >= 0:
        return (row.queue,)
    first = (raft_index + ordinal) % max(row.queue_count, 1)
    return (*range(first, row.queue_count), *range(first))
