"""Arguments and results of `QueueLeases`. Re-exported by `strata_mq.leases.queue_leases`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class LeaseState(IntEnum):
    """State byte of a lease row."""

    LEASED = 1
    WAITING = 2
    BLOCKED = 3


class Lease(NamedTuple):
    """One row below head (docs/data-layout.md section 5, lease row).

    A value: rows of one pop that are equal share one object, which is also encoded once.
    """

    state: LeaseState
    # Deliveries so far; at `max_attempts` (0: no limit) the message is not delivered again.
    attempts: int
    max_attempts: int
    # Rises with every delivery, every change of the visible time and every attempt that is taken
    # back: names one receipt handle.
    lease_number: int
    dead_letter_topic_id: int
    # Group time; 0 for an auto-renewed lease.
    visible_at_ms: int
    taken_at_ms: int
    # The client that holds an auto-renewed lease.
    holder: int
    group_hash: int
    # Names the pop that took it (a hash), 0 for none.
    attempt: int
    auto_renewed: bool
    # Length of the stored message, so that a redelivery keeps to max_bytes too.
    length: int = 0
    # Mark of the broker that gave it last, 0 for none, or when it was changed.
    broker: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether the message may not be delivered again."""
        return 0 < self.max_attempts <= self.attempts

    def ends_at(self, visible_at_ms: int, now_ms: int) -> bool:
        """Whether it is held until this time, and not for as long as its holder lives."""
        is_held = self.state is LeaseState.LEASED and not self.auto_renewed
        return is_held and now_ms < visible_at_ms == self.visible_at_ms

    def unheld(self, state: LeaseState, lease_number: int, visible_at_ms: int) -> Lease:
        """Return the lease with no holder: it is not auto-renewed and belongs to no attempt."""
        return Lease(
            state,
            self.attempts,
            self.max_attempts,
            lease_number,
            self.dead_letter_topic_id,
            visible_at_ms,
            self.taken_at_ms,
            0,
            self.group_hash,
            0,
            False,
            self.length,
        )

    def not_counted(self) -> Lease:
        """Return the lease as if its last delivery had not been.

        Its number is to rise with that, so that nobody takes the attempt back once more.
        """
        return self._replace(attempts=max(self.attempts - 1, 0))


class LeaseChange(NamedTuple):
    """Rows to write for one (consumer group, queue); encodes as a section of LEASES."""

    generation: int
    head: int
    head_changed: bool
    puts: Sequence[tuple[int, Lease]] = ()
    deletes: Sequence[int] = ()
    clear: bool = False
    # The head row goes too, as if the consumer group had never come.
    forget: bool = False


class Columns(NamedTuple):
    """The part of a run of messages that a pop may read: offsets base .. base + count - 1.

    Attributes:
        base_offset: Offset of the first message.
        message_count: Messages of the run.
        selected: Ordinals, rising, of the messages that the consumer's filter lets through; the
            others are passed over. None: all.
        group_hashes, lengths: By ordinal; may be empty when nothing is selected.
    """

    base_offset: int
    message_count: int
    selected: Sequence[int] | None
    group_hashes: Sequence[int]
    lengths: Sequence[int]

    def selected_between(self, first: int, end: int) -> Sequence[int]:
        """Return the selected ordinals from `first` to `end` - 1."""
        selected = self.selected
        if selected is None:
            return range(first, end)
        return selected[bisect_left(selected, first) : bisect_left(selected, end)]


def broker_mark(boot_id: int) -> int:
    """Return the 16 bits of a broker's boot id that a lease keeps; 0 only for no broker.

    Two brokers with one mark cost a delivery too many when one of them is lost, nothing else.
    """
    return (boot_id & 0xFFFF) or int(boot_id != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """One pop on one queue."""

    max_messages: int
    max_bytes: int
    invisible_ms: int
    auto_renew: bool
    holder: int
    attempt: int
    fifo: bool
    max_attempts: int
    dead_letter_topic_id: int
    # FIFO: at most one message of each message group, for clients that go on to the next message
    # of a batch while they retry the one before.
    one_per_message_group: bool = False
    # `broker_mark` of the broker that asks.
    broker: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of a pop: (offset, lease) in delivery order, and what to write (None: nothing)."""

    leases: Sequence[tuple[int, Lease]]
    change: LeaseChange | None
    # The same attempt asked again (FIFO): the leases are those of the first answer.
    repeated: bool = False


def merge_changes(changes: Sequence[LeaseChange]) -> LeaseChange:
    """Return one change with the effect of all, in order; they are of one (group, queue).

    Raises:
        ValueError: there is no change.
    """
    if not changes:
        raise ValueError("nothing to merge")
    if len(changes) == 1:
        return changes[0]
    puts: dict[int, Lease] = {}
    deletes: dict[int, None] = {}
    clear = head_changed = forget = False
    for change in changes:
        if change.head_changed or change.forget:
            head_changed, forget = change.head_changed, change.forget
        if change.clear:
            puts, deletes, clear = {}, {}, True
        puts.update(change.puts)
        for offset in change.deletes:
            puts.pop(offset, None)
            deletes[offset] = None
    last = changes[-1]
    return LeaseChange(
        last.generation,
        last.head,
        head_changed,
        tuple(puts.items()),
        tuple(deletes),
        clear,
        forget,
    )
