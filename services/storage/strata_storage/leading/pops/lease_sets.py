"""The leases a leader has in memory: one `QueueLeases` per active (consumer group, queue).

A set is loaded from rows when first needed; the least recently used sets are dropped when they are
idle. Two small indexes know, for all rows, in memory or not, which leases expire and which clients
hold auto-renewed leases.

Invariant: a set is loaded only while none of its changes is on its way to the rows, so a loaded set
equals the decided state.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
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
from strata_storage.leading.pops.lost_takes import LostTakes
from strata_storage.leading.pops.matches import Matches
from strata_storage.leading.pops.set_deadlines import SetDeadlines
from strata_storage.leading.proposer import Proposer
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
# When a set is looked at again that could not be read.
_RETRY_MS = 1_000


class LeaseSet:
    """The leases of one consumer group on one queue, and what of them is under way.

    Attributes:
        key: (consumer group id, topic id, queue).
        leases: speculative state.
        in_flight: changes proposed, or kept to be proposed, whose rows are not in the store.
        matches: what is known already of messages from the head on; None: nothing.
        stale: memory is ahead of what can be proposed; to be read again from rows.
    """

    __slots__ = ("in_flight", "key", "leases", "matches", "stale")

    def __init__(self, key: ConsumerKey, leases: QueueLeases) -> None:
        self.key = key
        self.leases = leases
        self.in_flight = 0
        self.matches: Matches | None = None
        self.stale = False


Section = tuple[LeaseSet, LeaseChange]


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
    """

    __slots__ = (
        "_by_consumer_group",
        "_by_queue",
        "_by_topic",
        "_deadlines",
        "_holders",
        "_kept",
        "_machine",
        "_max_idle",
        "_passed",
        "_passed_since_ms",
        "_proposer",
        "_sets",
        "_wake",
        "filter_limited",
        "filtered",
        "held_queues",
        "lost",
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
        self._max_idle = max_idle
        self._wake = wake
        self._sets: OrderedDict[ConsumerKey, LeaseSet] = OrderedDict()
        # (topic, queue) -> its sets: a trim of many queues must not look at all sets for each.
        self._by_queue: dict[tuple[int, int], dict[ConsumerKey, LeaseSet]] = {}
        self._by_topic: KeyIndex[ConsumerKey] = KeyIndex()
        self._by_consumer_group: KeyIndex[ConsumerKey] = KeyIndex()
        self._deadlines = SetDeadlines()
        # By holder of auto-renewed leases; of sets in memory or not, in which it may have some.
        self._holders: KeyIndex[ConsumerKey] = KeyIndex()
        # Changes decided whose proposal was refused: they go before any other.
        self._kept: list[Section] = []
        # Sets whose head moved over messages that nobody wanted, and since when there are any.
        self._passed: dict[ConsumerKey, LeaseSet] = {}
        self._passed_since_ms = 0
        self.trimmed_leases = 0
        self.filtered = 0
        self.filter_limited = 0
        self.held_queues: set[tuple[int, int]] = set()
        self.lost = LostTakes()

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
            self._sets.move_to_end(key)
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
        return list(self._by_topic.of(topic_id))

    def loaded(self) -> list[LeaseSet]:
        """Return the sets in memory."""
        return list(self._sets.values())

    def of_queue(self, topic_id: int, queue: int) -> list[LeaseSet]:
        """Return the sets of a queue that are in memory."""
        return list(self._by_queue.get((topic_id, queue), {}).values())

    def _add(self, key: ConsumerKey, leases: QueueLeases) -> LeaseSet:
        # Read before anything changes: `_trim` needs it.
        self._machine.queues.get(key[1], key[2])
        added = self._sets[key] = LeaseSet(key, leases)
        self._by_queue.setdefault(key[1:], {})[key] = added
        self._by_consumer_group.add(key[0], key)
        self._by_topic.add(key[1], key)
        self._trim(added)
        self.note(added)
        if leases.holders():
            self.lost.loaded(key)
        self._evict()
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

    def _evict(self) -> None:
        excess = len(self._sets) - self._max_idle
        if excess <= 0:
            return
        idle = [
            key
            for key, _ in zip(self._sets, range(excess + 16), strict=False)
            if not self._sets[key].in_flight
        ]
        for key in idle[:excess]:
            self._remove(key)

    def _remove(self, key: ConsumerKey) -> None:
        del self._sets[key]
        self._by_consumer_group.discard(key[0], key)
        self._by_topic.discard(key[1], key)
        self._passed.pop(key, None)
        of_queue = self._by_queue[key[1:]]
        del of_queue[key]
        if not of_queue:
            del self._by_queue[key[1:]]

    # Changes ------------------------------------------------------------------------------------

    def keep(self, lease_set: LeaseSet, change: LeaseChange) -> None:
        """Propose a change before the next one: nobody waits for it."""
        lease_set.in_flight += 1
        if change.head_changed or change.clear:
            self._passed.pop(lease_set.key, None)
        self._kept.append((lease_set, change))

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
        if not self._kept:
            return None
        kept, self._kept = self._kept, []
        try:
            return self._send(kept)
        except Refused:
            self._kept = kept + self._kept
            raise

    def propose(self, sections: list[Section]) -> asyncio.Future[int]:
        """Propose changes of sets, in order; what was kept goes first, in the same entry.

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

    def _send(self, sections: list[Section]) -> asyncio.Future[int]:
        def applied() -> None:
            for lease_set, _ in sections:
                lease_set.in_flight -= 1

        future = self._proposer.propose((self.encode(sections),), applied)
        for lease_set, change in sections:
            self._changed(lease_set, change)
        return future

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

    def due(self, now_ms: int, limit: int) -> list[LeaseSet]:
        """Return at most `limit` sets of which something has run out.

        They are to be noted again when that was seen to. One that cannot be read now stays due.
        """
        due: dict[ConsumerKey, LeaseSet] = {}
        unreadable: list[ConsumerKey] = []
        while len(due) < limit and (key := self._deadlines.take_due(now_ms)) is not None:
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

    def held_by(self, holder: int) -> Iterator[LeaseSet]:
        """Yield the sets in which `holder` has leases, that can be read now.

        A change is to be kept before the next one is asked for: that may take the place of an idle
        set in memory. Forgets holders without any.
        """
        for key in self._holders.of(holder):
            try:
                found = self.find(key)
            except Refused:
                # It cannot be read now, and is still known to be the holder's.
                continue
            if found is not None and found.leases.holds(holder):
                yield found
            else:
                self._holders.discard(holder, key)

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
        self._kept = [section for section in self._kept if section[0].key[1:] != gone]

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        """Forget the sets of a topic or consumer group whose rows are gone."""
        is_topic = what == DropKind.TOPIC
        at, index = (1, self._by_topic) if is_topic else (0, self._by_consumer_group)
        for key in index.of(dropped_id):
            self._drop(key)
        self._kept = [section for section in self._kept if section[0].key[at] != dropped_id]

    def _drop(self, key: ConsumerKey) -> None:
        """Forget a set whose rows are gone."""
        for holder in self._sets[key].leases.holders():
            self._holders.discard(holder, key)
        self._remove(key)

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
