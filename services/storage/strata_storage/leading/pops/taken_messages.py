"""Reads what a pop took; what it cannot give to its caller is consumed.

Invariants: nobody is given a message whose bytes were not proved, or that the filter does not want;
in a FIFO group no message overtakes one of its message group that cannot be read (rule 24).
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_mq.filters import EVERYTHING, MessageFilter
from strata_mq.layout import CqRow
from strata_runtime.turns import Turns
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.pop_calls import (
    Delivered,
    Leased,
    PopCall,
    Scan,
    unreadable_until_ms,
)
from strata_storage.leading.pops.waiters import Waiters
from strata_storage.leading.proposer import Proposer
from strata_storage.reads.reader import Location, MessageReader
from strata_storage.rows.machine import GroupMachine

Found = tuple[Leased, CqRow]


class TakenMessages:
    """See the module docstring."""

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        sets: LeaseSets,
        *,
        waiters: Waiters,
        reader: MessageReader,
        turns: Turns,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sets = sets
        self._waiters = waiters
        self._reader = reader
        self._turns = turns

    async def read(self, call: PopCall, scan: Scan) -> list[Delivered]:
        """Read the messages.

        One that is damaged, or that the disk cannot read now, is put off, which is no attempt (rule
        36), and in a FIFO group so is the rest of its message group; one that is gone, because a
        repair of the log gave it up, is consumed, and so is one that the filter does not want: its
        tag only shares a hash, or it was leased when the group had another filter.

        Raises:
            Refused: OUTCOME_CORRUPT, not one message can be read; OUTCOME_OVERLOADED, the disk
                cannot read now, or too many reads wait.
        """
        found: list[Found] = []
        locations: list[Location] = []
        base, end, row, row_set = 0, 0, None, None
        for leased in scan.leases:
            lease_set, _, offset, _, _ = leased
            if row is None or row_set is not lease_set or not base <= offset < end:
                _, topic_id, queue = lease_set.key
                run = self._machine.consume_queues.covering(topic_id, queue, offset)
                if run is None:
                    self._consume(leased)
                    continue
                base, row = run
                end, row_set, raft_index = base + row.count, lease_set, row.raft_index
                starts, lengths, checksums = row.starts, row.lengths, row.checksums
            found.append((leased, row))
            at = offset - base
            locations.append(
                Location(
                    raft_index, starts[at], lengths[at], checksums[at], topic_id, queue, offset
                )
            )
        messages: Sequence[bytes | None] = [b""] * len(found)
        if not call.places_only or call.message_filter is not EVERYTHING:
            messages = await self._reader.read(locations, call.consumer_group_id)
        if None in messages:
            if not any(message is not None for message in messages):
                self._put_off(scan, found, messages)
                raise self._reader.refusal_of(locations[0], "every message of this pop")
            if call.take.fifo:
                messages = _without_overtaking(found, messages)
            self._put_off(scan, found, messages)
        delivered: list[Delivered] = []
        takes_all = call.message_filter is EVERYTHING
        for (leased, row), message in zip(found, messages, strict=True):
            if message is None:
                continue
            if not (takes_all or await self._is_wanted(call.message_filter, leased, message)):
                self._consume(leased)
                self._sets.filtered += 1
                continue
            lease_set, generation, offset, lease, _ = leased
            queue = lease_set.key[2]
            delivered.append(
                Delivered(queue, offset, generation, row.store_time_ms, lease, message)
            )
        return delivered

    async def _is_wanted(
        self, message_filter: MessageFilter, leased: Leased, message: bytes
    ) -> bool:
        if not message_filter.needs_messages:
            return message_filter.matches(message)
        if leased.is_new:
            # The filter saw every new message already.
            return True
        return (await self._turns.do(message_filter.work(message)))[0]

    def _put_off(
        self, scan: Scan, found: Sequence[Found], messages: Sequence[bytes | None]
    ) -> None:
        if scan.repeated:
            # It may have been readable, and given, the first time.
            return
        for (leased, _), message in zip(found, messages, strict=True):
            if message is None:
                self._reschedule(leased)

    def _reschedule(self, leased: Leased) -> None:
        """Keep a message that cannot be read from everybody for a while."""
        lease_set = self._sets.now(leased.lease_set)
        if lease_set is None:
            return
        lease = leased.lease
        until_ms = unreadable_until_ms(lease.visible_at_ms, self._proposer.now_ms())
        change = lease_set.leases.reschedule_undelivered(
            leased.offset, lease.lease_number, leased.generation, until_ms
        )
        if change is not None:
            self._sets.keep(lease_set, change)

    def _consume(self, leased: Leased) -> None:
        """Ack a message that nobody is given, so that its lease does not hold up the others."""
        lease_set = self._sets.now(leased.lease_set)
        if lease_set is None:
            return
        _, _, offset, lease, _ = leased
        _, change = lease_set.leases.ack(
            offset,
            lease.lease_number,
            leased.generation,
            lease.visible_at_ms,
            self._proposer.now_ms(),
        )
        if change is not None:
            self._sets.keep(lease_set, change)
            # In a FIFO group the next message may be free now.
            self._waiters.wake_group(lease_set.key[1], lease_set.key[0])


def _without_overtaking(
    found: Sequence[Found], messages: Sequence[bytes | None]
) -> Sequence[bytes | None]:
    """Return the messages without those behind an unreadable one of their message group."""
    unreadable: dict[tuple[LeaseSet, int], int] = {}
    places = [((leased.lease_set, leased.lease.group_hash), leased.offset) for leased, _ in found]
    for (message_group, offset), message in zip(places, messages, strict=True):
        if message is None:
            unreadable[message_group] = min(offset, unreadable.get(message_group, offset))
    return [
        message if offset < unreadable.get(message_group, offset + 1) else None
        for (message_group, offset), message in zip(places, messages, strict=True)
    ]
