"""RecallMessage: a producer takes back a message that no consumer received yet.

A delayed message can be recalled until it is due. A stored message, also a delayed one that was
delivered meanwhile, can be recalled as long as no consumer group received it or passed over it: its
offset stays and holds nothing. A read without a lease does not count. A message that was brought to
another raft group cannot be recalled: its handle does not say where it is.
"""

from __future__ import annotations

import asyncio

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import RetractCommand, StoredPosition, encode_retract
from strata_mq.layout import PartKind, PendingRef
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.resolver import (
    DELIVERING,
    Decision,
    End,
    Ended,
    Place,
    Resolver,
    Waiting,
)
from strata_storage.leading.pops.term_leases import TermLeases
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.rows.machine import GroupMachine


class Recalls:
    """Recalls messages for one leader in one term.

    Invariant: while a RETRACT of a queue is in flight, pops take nothing from that queue: the
    message is in its rows until then.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        resolver: Resolver,
        *,
        leases: TermLeases,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._resolver = resolver
        self._sets, self._waiters = leases
        self._retracting: dict[StoredPosition, asyncio.Future[int]] = {}

    async def recall(
        self, name: PendingRef | Place | None, topic_id: int, message_id: bytes
    ) -> None:
        """Take a message back; repeating it changes nothing.

        Args:
            name: by entry or by offset; None: the newest one with the id.
            topic_id: its topic.
            message_id: its id, 17 bytes.

        Raises:
            Refused: OUTCOME_INVALID_HANDLE, it was delivered, is due or was never there; or not
                now.
        """
        if name is None:
            name = self._resolver.name_of(topic_id, message_id)
        if isinstance(name, Place):
            await self._recall_stored(name, message_id)
            return
        found = self._resolver.find(name)
        if isinstance(found, Waiting):
            self._check(found, topic_id, message_id)
            await self._resolver.discard(found, End.RECALLED, for_call=True).wait()
            return
        if isinstance(found, Decision):
            await found.wait()
            found = Ended(found.place, found.end)
        if found is not None and found.end is End.RECALLED:
            return
        # Another raft group may have it: there this one knows of no offset, and takes nothing back.
        place = None if found is None else found.place_here
        if place is None or place.topic_id != topic_id:
            raise _too_late("the message was delivered, or was never there")
        await self._recall_stored(place, message_id)

    def _check(self, waiting: Waiting, topic_id: int, message_id: bytes) -> None:
        key, row = waiting
        if row.topic_id != topic_id or row.message_id != message_id:
            raise _too_late("the message is another one")
        if row.kind is not PartKind.DELAYED:
            raise _too_late("a transaction is rolled back, not recalled")
        if row.checks == DELIVERING or key.due_ms <= self._proposer.now_ms():
            raise _too_late("the message is due")

    # Stored messages ----------------------------------------------------------------------------

    async def _recall_stored(self, place: Place, message_id: bytes) -> None:
        position = StoredPosition(*place)
        future = self._retracting.get(position)
        if future is None:
            if self._is_retracted(place, message_id):
                # A repeat gets the answer of the first, whoever led then (rule 37).
                return
            self._check_stored(place, message_id)
            future = self._retract(position)
        await committed(future)

    def _is_retracted(self, place: Place, message_id: bytes) -> bool:
        """Whether the message was taken back before, as far as its id is still known."""
        if not self._machine.rows.retracted.has(*place):
            return False
        try:
            name = self._resolver.name_of(place.topic_id, message_id)
        except Refused:
            # The row of its id is gone: of another day, or not to be made again without the entry.
            return True
        if isinstance(name, Place):
            return name == place
        found = self._resolver.find(name)
        return isinstance(found, Ended) and (found.place_here == place or found.end is End.RECALLED)

    def _check_stored(self, place: Place, message_id: bytes) -> None:
        topic_id, queue, offset = place
        machine = self._machine
        row = machine.queues.get(topic_id, queue)
        if row is None or not row.min_offset <= offset < row.next_offset:
            raise _too_late("no message is stored there")
        if machine.consume_queues.covering(topic_id, queue, offset) is None:
            raise _too_late("nothing is stored there any more")
        if self._place_of(topic_id, message_id) != place:
            raise _too_late("the message is another one")
        if any(head > offset for head in self._sets.heads(topic_id, queue)):
            raise _too_late("a consumer group was given the message, or passed it")

    def _place_of(self, topic_id: int, message_id: bytes) -> Place | None:
        name = self._resolver.name_of(topic_id, message_id)
        if isinstance(name, Place):
            return name
        found = self._resolver.find(name)
        return found.place_here if isinstance(found, Ended) else None

    def _retract(self, position: StoredPosition) -> asyncio.Future[int]:
        topic_id, queue, _ = position
        command = RetractCommand(self._proposer.now_ms(), [position])

        def applied() -> None:
            del self._retracting[position]
            if not any(each[:2] == (topic_id, queue) for each in self._retracting):
                self._sets.held_queues.discard((topic_id, queue))
                self._waiters.wake_topic(topic_id, queue)

        future = self._proposer.propose((encode_retract(command),), applied)
        self._retracting[position] = future
        self._sets.held_queues.add((topic_id, queue))
        return future


def _too_late(reason: str) -> Refused:
    return Refused(pb.OUTCOME_INVALID_HANDLE, reason)
