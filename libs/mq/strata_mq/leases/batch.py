"""One pop in the making: the leases it gives and the limits it keeps to."""

from __future__ import annotations

from collections.abc import Iterable

from strata_mq.leases.types import Columns, Lease, LeaseState, TakeRequest

_ATTEMPTS_MAX = 0xFFFF


class TakeBatch:
    """The messages that one pop has so far: makes the leases, keeps to the request's limits.

    Attributes:
        taken: (offset, lease) in delivery order.
        blocked: (offset, row) of new messages that must wait for their message group.
        full: max_messages or max_bytes is reached.
        attempt: The attempt that leases remember: FIFO pops are repeated by clients, and a broker
            whose answer was lost asks for what the pop took.
    """

    __slots__ = (
        "_bytes",
        "_fresh",
        "_now_ms",
        "_visible_at_ms",
        "attempt",
        "blocked",
        "full",
        "request",
        "taken",
    )

    def __init__(self, request: TakeRequest, now_ms: int) -> None:
        self.request = request
        self.taken: list[tuple[int, Lease]] = []
        self.blocked: list[tuple[int, Lease]] = []
        self.full = request.max_messages <= 0
        self.attempt = request.attempt
        self._bytes = 0
        self._now_ms = now_ms
        self._visible_at_ms = 0 if request.auto_renew else now_ms + request.invisible_ms
        self._fresh: dict[tuple[int, int], Lease] = {}

    def fits(self, length: int) -> bool:
        """Whether a message of this length may come next; the first one always may."""
        if self.full:
            return False
        self.full = bool(self.taken) and self._bytes + length > self.request.max_bytes
        return not self.full

    def fresh(self, offset: int, group_hash: int, length: int) -> Lease:
        """Lease a new message; equal leases of a batch are one object."""
        lease = self._fresh.get((group_hash, length))
        if lease is None:
            lease = self._fresh[group_hash, length] = self._lease(1, 1, group_hash, length)
        self._add(offset, lease)
        return lease

    def take_plain(self, run: Columns, ordinals: Iterable[int], room: int) -> int | None:
        """Lease new messages of a run, as `fits` and `fresh` do for one, where none waits.

        Args:
            run: of columns.
            ordinals: of the messages, in the run.
            room: for so many leases.

        Returns:
            The first ordinal that was not taken; None: all were.
        """
        base, lengths, group_hashes = run.base_offset, run.lengths, run.group_hashes
        taken, leases = self.taken, self._fresh
        most, most_bytes, size_bytes = (
            min(self.request.max_messages, len(taken) + room),
            self.request.max_bytes,
            self._bytes,
        )
        left = None
        for ordinal in ordinals:
            group_hash, length = group_hashes[ordinal], lengths[ordinal]
            if self.full or len(taken) >= most:
                left = ordinal
                break
            if taken and size_bytes + length > most_bytes:
                self.full = True
                left = ordinal
                break
            lease = leases.get((group_hash, length))
            if lease is None:
                lease = leases[group_hash, length] = self._lease(1, 1, group_hash, length)
            taken.append((base + ordinal, lease))
            size_bytes += length
        self._bytes = size_bytes
        self.full = self.full or len(taken) >= self.request.max_messages
        return left

    def again(self, offset: int, before: Lease) -> Lease:
        """Lease a row once more."""
        attempts = min(before.attempts + 1, _ATTEMPTS_MAX)
        lease = self._lease(attempts, before.lease_number + 1, before.group_hash, before.length)
        self._add(offset, lease)
        return lease

    def block(self, offset: int, group_hash: int, length: int) -> Lease:
        """Make the row of a message that must wait for its message group."""
        request = self.request
        lease = Lease(
            LeaseState.BLOCKED,
            0,
            request.max_attempts,
            0,
            request.dead_letter_topic_id,
            0,
            0,
            0,
            group_hash,
            0,
            False,
            length,
        )
        self.blocked.append((offset, lease))
        return lease

    def _lease(self, attempts: int, number: int, group_hash: int, length: int) -> Lease:
        request = self.request
        return Lease(
            LeaseState.LEASED,
            attempts,
            request.max_attempts,
            number,
            request.dead_letter_topic_id,
            self._visible_at_ms,
            self._now_ms,
            request.holder,
            group_hash,
            self.attempt,
            request.auto_renew,
            length,
            request.broker,
        )

    def _add(self, offset: int, lease: Lease) -> None:
        self.taken.append((offset, lease))
        self._bytes += lease.length
        self.full = len(self.taken) >= self.request.max_messages
