"""The leases a leader has in memory: one `QueueLeases` per active (consumer group, queue).

A set is loaded from rows when first needed; the least recently used sets are dropped when they are
idle (`LoadedSets`). Changes wait in `KeptChanges` for their way into the log. Two small indexes
know, for all rows, in memory or not, which leases expire and which clients hold auto-renewed
leases.

Invariant: a set is loaded only while none of its changes is on its way to the rows, so a loaded set
equals the decided state.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Mapping

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, encode_leases
from strata_mq.layout import QueueRow
from strata_mq.leases import Lease, LeaseChange, LeaseState, QueueLeases
from strata_state.ports import StateError
from strata_state.rows import ConsumerKey
from strata_storage.base.errors import Refused
from strata_storage.base.key_index import KeyIndex
from strata_storage.leading.brokers import LostBroker
from strata_storage.leading.pops.kept_changes import KeptChanges
from strata_storage.leading.pops.known_consumers import KnownConsumers
from strata_storage.leading.pops.lease_set import LeaseSet, Section
from strata_storage.leading.pops.loaded_sets import LoadedSets
from strata_storage.leading.pops.lost_takes import LostTakes
from strata_storage.leading.pops.set_deadlines import SetDeadlines
from strata_storage.leading.proposer import Proposer
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
# When a set is looked at again that could not be read.
_RETRY_MS = 1_000


class LeaseSets:
    """Lease sets of one leader in one term, and the way of their changes into the log.

    Args:
        machine: applied rows.
        proposer: where changes go.
        max_idle: sets kept in memory beyond those that have changes under way.
        wake: called with a set's key when messages of it may have become deliverable.

    Attributes:
        trimmed_leases, filtered, filter_limited: counted since the last turn of the timer.
        held_queues: (topic, queue) of which pops take nothing for now.
        lost: sets to be searched for leases of lost brokers.
        rows_read: lease rows read since the start of the term.
    """

    __slots__ = (
        "_consumers",
        "_deadlines",
        "_holders",
        "_kept",
        "_machine",
        "_passed",
        "_passed_since_ms",
        "_proposer",
        "_sets",
        "_wake",
        "filter_limited",
        "filtered",
        "held_queues",
        "lost",
        "rows_read",
        "trimmed_leases",
    )

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        max_idle: int,
        *,
        wake: Callable[[ConsumerKey], None] = lambda key: None,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._wake = wake
        # Sets whose head moved over messages that nobody wanted, and since when there are any.
        self._passed: dict[ConsumerKey, LeaseSet] = {}
        self._passed_since_ms = 0
        self._sets = LoadedSets(max_idle, lambda key: self._passed.pop(key, None))
        self._consumers = KnownConsumers(machine.rows.heads, self._sets.keys_of_topic)
        self._deadlines = SetDeadlines()
        # By holder of auto-renewed leases; of sets in memory or not, in which it may have some.
        self._holders: KeyIndex[ConsumerKey] = KeyIndex()
        # Changes decided whose proposal was refused: they go before any other.
        self._kept = KeptChanges(
            self._propose_entry, proposed=self._changed, given_up=self._read_again
        )
        self.trimmed_leases = 0
        self.filtered = 0
        self.filter_limited = 0
        self.held_queues: set[tuple[int, int]] = set()
        self.lost = LostTakes()
        self.rows_read = 0

    def __len__(self) -> int:
        return len(self._sets)

    # Sets ---------------------------------------------------------------------------------------

    def find(self, key: ConsumerKey) -> LeaseSet | None:
        """Return a set; None: the consumer group never took or skipped anything of this queue.

        Raises:
            Refused: OUTCOME_OVERLOADED, the set must be read and cannot be yet.
        """
        found = self._sets.get(key)
        if found is not None and not found.stale:
            self._sets.used(key)
            return found
        if found is not None and found.in_flight:
            raise Refused(pb.OUTCOME_OVERLOADED, "leases of this queue are being written")
        try:
            head = self._machine.rows.heads.get(key)
            if head is None:
                return None
            rows = self._machine.rows.leases.of_queue(key)
            leases = QueueLeases(
                head=head.head, generation=head.generation, rows=rows, lost=self.lost.since_ms
            )
            self.rows_read += leases.in_flight + leases.waiting
            return self._add(key, leases)
        except StateError as error:
            raise _unreadable(error) from error

    def in_memory(self, key: ConsumerKey) -> LeaseSet | None:
        """Return a set that is in memory, as it is there."""
        return self._sets.get(key)

    def now(self, lease_set: LeaseSet) -> LeaseSet | None:
        """Return what a set is now for who had it before an await; None: gone, or not readable.

        It may have been read anew: what is decided on an old object is lost (rule 38).
        """
        try:
            return self.find(lease_set.key)
        except Refused:
            return None

    def find_or_start(self, key: ConsumerKey, *, latest: bool) -> LeaseSet:
        """Return a set; a consumer group that is new to the queue starts at one of its ends."""
        found = self.find(key)
        if found is not None:
            return found
        try:
            queue = self._machine.queues.get(key[1], key[2]) or _EMPTY_QUEUE
            # A later epoch goes on where the one before ended: the group's start was there.
            latest = latest and not queue.epoch
            start = queue.next_offset if latest else queue.min_offset
            started = self._add(key, QueueLeases(head=start, lost=self.lost.since_ms))
        except StateError as error:
            raise _unreadable(error) from error
        if latest:
            # Else the group would start later after a change of leader or of the slot's owner.
            self.keep(started, started.leases.write_head())
        return started

    def may_begin(self, topic: Topic, queue: int) -> bool:
        """Whether a consumer group may begin at a queue: it is here, and pops may take of it.

        A position in a lite topic that is about to end would come behind the end, and stay.
        """
        return (topic.topic_id, queue) not in self.held_queues and self._machine.serves_queue(
            topic, queue
        )

    def reload(self, lease_set: LeaseSet) -> None:
        """Read a set again, because a change of it could not be proposed and is not kept."""
        lease_set.stale = True

    def keys_of_topic(self, topic_id: int) -> list[ConsumerKey]:
        """Return the keys of a topic's sets in memory."""
        return list(self._sets.keys_of_topic(topic_id))

    def loaded(self) -> list[LeaseSet]:
        """Return the sets in memory."""
        return self._sets.all()

    def of_queue(self, topic_id: int, queue: int) -> list[LeaseSet]:
        """Return the sets of a queue that are in memory."""
        return self._sets.of_queue(topic_id, queue)

    def heads(self, topic_id: int, queue: int) -> Iterator[int]:
        """Iterate the heads of all consumer groups that took or skipped anything of a queue.

        A set that is not in memory is not loaded: its head is read alone.

        Raises:
            Refused: OUTCOME_OVERLOADED, one cannot be read yet.
        """
        try:
            for key in self._consumers.of_queue(topic_id, queue):
                if self._sets.get(key) is None:
                    row = self._machine.rows.heads.get(key)
                    if row is not None:
                        yield row.head
                elif (found := self.find(key)) is not None:
                    yield found.leases.head
        except StateError as error:
            raise _unreadable(error) from error

    def _add(self, key: ConsumerKey, leases: QueueLeases) -> LeaseSet:
        # Read before anything changes: `_trim` needs it.
        self._machine.queues.get(key[1], key[2])
        added = LeaseSet(key, leases)
        self._sets.add(added)
        self._consumers.added(key)
        self._trim(added)
        self.note(added)
        if leases.holders():
            self.lost.loaded(key)
        return added

    def _trim(self, lease_set: LeaseSet) -> None:
        """Drop what lies below the queue's min offset (rule 26)."""
        _, topic_id, queue = lease_set.key
        row = self._machine.queues.get(topic_id, queue)
        if row is None:
            return
        change, dropped = lease_set.leases.trim(row.min_offset)
        self.trimmed_leases += dropped
        if change is not None:
            self.keep(lease_set, change)
            # In a FIFO group others may have waited behind what is dropped.
            self._wake(lease_set.key)

    # Changes ------------------------------------------------------------------------------------

    def keep(self, lease_set: LeaseSet, change: LeaseChange) -> None:
        """Propose a change before the next one: nobody waits for it."""
        if change.head_changed or change.clear:
            self._passed.pop(lease_set.key, None)
        self._kept.add(lease_set, change)

    def passed(self, lease_set: LeaseSet) -> None:
        """Note that the head moved over messages that nobody wanted, and nothing else.

        That is written with the next change of the head, or after a while by `write_passed`: if it
        is lost, the filter only looks at them again. An entry each time would cost every consumer
        group with a filter an entry for every append.
        """
        if not self._passed:
            self._passed_since_ms = self._proposer.now_ms()
        self._passed[lease_set.key] = lease_set

    def write_passed(self, older_than_ms: int) -> None:
        """Propose heads that moved by `passed` if the first of them did so long ago.

        Raises:
            Refused: not now.
        """
        if not self._passed or self._proposer.now_ms() - self._passed_since_ms < older_than_ms:
            return
        # The head of a queue that is about to end would be written behind its end, for good.
        stays = [found for key, found in self._passed.items() if key[1:] not in self.held_queues]
        passed = [found for found in stays if self._sets.get(found.key) is found]
        self._passed.clear()
        if passed:
            self.propose([(lease_set, lease_set.leases.write_head()) for lease_set in passed])

    def check_open(self) -> None:
        """Let the caller decide something, if what was decided before could be proposed.

        To be called before a decision: so at most one decision is ever kept back.

        Raises:
            Refused: what was decided before cannot be proposed yet.
        """
        if self._kept:
            self.flush_kept()

    def flush_kept(self) -> asyncio.Future[int] | None:
        """Propose what was kept.

        Raises:
            Refused: not now.
        """
        return self._kept.flush()

    def propose(self, sections: list[Section]) -> asyncio.Future[int]:
        """Propose changes of sets, in order; what was kept goes first.

        All are in one entry, if they fit into it; the future is that of the last entry.

        Raises:
            Refused: not now; the changes are kept.
        """
        for lease_set, change in sections:
            self.keep(lease_set, change)
        future = self.flush_kept()
        assert future is not None, "nothing to propose"
        return future

    def encode(self, sections: list[Section]) -> bytes:
        """Return a LEASES command."""
        return encode_leases(
            self._proposer.now_ms(), [(*lease_set.key, change) for lease_set, change in sections]
        )

    def _propose_entry(self, sections: list[Section]) -> asyncio.Future[int]:
        def applied() -> None:
            for lease_set, _ in sections:
                lease_set.in_flight -= 1
            self._sets.evict_soon(len(sections))

        try:
            payload = self.encode(sections)
        except (ValueError, struct.error) as error:
            raise Refused(pb.OUTCOME_INVALID, f"leases cannot be encoded: {error}") from error
        return self._proposer.propose((payload,), applied)

    def _read_again(self, lease_set: LeaseSet) -> None:
        """Go back to the rows of a set whose change can never be proposed, and see what is due."""
        self.reload(lease_set)
        self.revisit(lease_set, self._proposer.now_ms() + _RETRY_MS)

    def proposed(self, lease_set: LeaseSet, change: LeaseChange) -> None:
        """Take in that a change of a set was proposed in an entry of another kind."""
        lease_set.in_flight += 1
        self._changed(lease_set, change)

    def _changed(self, lease_set: LeaseSet, change: LeaseChange) -> None:
        self.note(lease_set)
        self.lost.changed(lease_set.key, change)
        if self._frees(lease_set, change):
            self._wake(lease_set.key)

    def _frees(self, lease_set: LeaseSet, change: LeaseChange) -> bool:
        """Whether a pop may find something that it could not find before a change.

        Where acks let nothing go on, as mostly without message groups, every ack would otherwise
        cost a pop in vain.
        """
        if change.clear:
            return True
        if change.puts and change.puts[0][1].state is LeaseState.WAITING:
            # Leases that a pop finds to have run out come before those that it takes.
            return True
        return bool(change.deletes) and self._is_deliverable(lease_set)

    def _is_deliverable(self, lease_set: LeaseSet) -> bool:
        """Whether a pop may find something in a queue; true where that cannot be read now."""
        try:
            row = self._machine.queues.get(*lease_set.key[1:]) or _EMPTY_QUEUE
        except StateError:
            return True
        return lease_set.leases.peek_ready(self._proposer.now_ms(), row.next_offset)

    # Deadlines and holders ----------------------------------------------------------------------

    def note(self, lease_set: LeaseSet) -> None:
        """Take in what of a set runs out next and who holds auto-renewed leases of it."""
        key, leases = lease_set.key, lease_set.leases
        deadline_ms = leases.next_deadline_ms()
        if deadline_ms is not None:
            self._deadlines.note(key, deadline_ms)
        for holder in leases.take_changed_holders():
            if leases.holds(holder):
                self._holders.add(holder, key)
            elif self._sets.get(key) is lease_set and not lease_set.stale:
                # Else the rows may have what memory has not.
                self._holders.discard(holder, key)

    def note_row(self, key: ConsumerKey, lease: Lease) -> None:
        """Take in a lease row of a set that is not in memory: a new leader reads all of them."""
        if lease.auto_renewed:
            self._holders.add(lease.holder, key)
            self.lost.seen(key, lease)
        self._deadlines.note(key, lease.visible_at_ms)

    def due(self, now_ms: int, limit: int, max_rows: int = 1 << 62) -> list[LeaseSet]:
        """Return at most `limit` sets of which something has run out.

        No other set is loaded when the rows that were read for them reach `max_rows`. The sets are
        to be noted again when that was seen to. A set that cannot be read now stays due.
        """
        due: dict[ConsumerKey, LeaseSet] = {}
        unreadable: list[ConsumerKey] = []
        most_rows = self.rows_read + max_rows
        while len(due) < limit and self.rows_read < most_rows:
            key = self._deadlines.take_due(now_ms)
            if key is None:
                break
            try:
                found = self.find(key)
            except Refused:
                unreadable.append(key)
                continue
            if found is None or key in due:
                # To load a set notes it: this may be what that left.
                continue
            next_ms = found.leases.next_deadline_ms()
            if (next_ms is not None and next_ms <= now_ms) or found.leases.exhausted():
                due[key] = found
            else:
                self.note(found)
        for key in unreadable:
            self._deadlines.note(key, now_ms + _RETRY_MS)
        return list(due.values())

    def revisit(self, lease_set: LeaseSet, at_ms: int) -> None:
        """Make a set due again: exhausted messages of it could not be moved yet."""
        self._deadlines.note(lease_set.key, at_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline known; it may be void."""
        return self._deadlines.first_ms()

    def holders(self) -> list[int]:
        """Return who may hold auto-renewed leases."""
        return self._holders.numbers()

    def held_by(self, holder: int) -> Iterator[LeaseSet | None]:
        """Yield each set in which `holder` has leases; forget sets where it has none.

        None stands for a set that was looked at in vain: it cannot be read now, or has none.
        """
        for key in self._holders.of(holder):
            try:
                found = self.find(key)
            except Refused:
                # It cannot be read now, and is still known to be the holder's.
                yield None
                continue
            if found is None or not found.leases.holds(holder):
                self._holders.discard(holder, key)
                found = None
            yield found

    def lose(self, lost: Mapping[LostBroker, int]) -> None:
        """Take in which brokers are lost; see `LostTakes.update`."""
        self.lost.update(lost, self._holders.keys)

    def next_of_lost(self) -> LeaseSet | None:
        """Return a set that waits in `lost`, see `held_by`; None: it is gone, or cannot be read."""
        key = self.lost.take()
        try:
            found = self.find(key)
        except Refused:
            self.lost.put_off(key)
            return None
        self.lost.taken(key)
        return found

    # News of apply ------------------------------------------------------------------------------

    def on_trimmed(self, topic_id: int, queue: int) -> None:
        """Drop leases below a queue's new min offset."""
        for lease_set in self.of_queue(topic_id, queue):
            self._trim(lease_set)

    def forget_queue(self, topic_id: int, queue: int) -> None:
        """Forget the sets of a queue whose rows are gone."""
        for lease_set in self.of_queue(topic_id, queue):
            self._drop(lease_set.key)
        gone = (topic_id, queue)
        self._kept.forget(lambda key: key[1:] == gone)

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        """Forget the sets of a topic or consumer group whose rows are gone."""
        if what == DropKind.TOPIC:
            at, keys = 1, self._sets.keys_of_topic(dropped_id)
        else:
            at, keys = 0, self._sets.keys_of_consumer_group(dropped_id)
        for key in keys:
            self._drop(key)
        self._kept.forget(lambda key: key[at] == dropped_id)

    def _drop(self, key: ConsumerKey) -> None:
        """Forget a set whose rows are gone."""
        found = self._sets.get(key)
        if found is None:
            return
        for holder in found.leases.holders():
            self._holders.discard(holder, key)
        self._sets.remove(key)

    def check_exists(self, consumer_group_id: int, topic_id: int) -> None:
        """Let a call pass unless its topic or consumer group was dropped.

        Raises:
            Refused: OUTCOME_WRONG_GROUP.
        """
        dropped = self._machine.dropped
        if (DropKind.TOPIC, topic_id) in dropped:
            raise Refused(pb.OUTCOME_WRONG_GROUP, f"topic {topic_id} was dropped")
        if (DropKind.CONSUMER_GROUP, consumer_group_id) in dropped:
            raise Refused(pb.OUTCOME_WRONG_GROUP, f"consumer group {consumer_group_id} was dropped")


def _unreadable(error: StateError) -> Refused:
    """Return the refusal of who may come again: a read that fails ends nothing else (rule 40)."""
    return Refused(pb.OUTCOME_OVERLOADED, f"leases cannot be read: {error}")
