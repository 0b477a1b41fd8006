"""Notices of a node to the brokers that watch it: led raft groups, halves to check, places to pop.

One stream per broker carries all. A slow reader misses leaderships that began and ended; checks
wait for it in a queue with a limit, and a check that finds no space there is offered to another
broker; a place waits for it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.base.interests import DeliverablePlace, Interests, InterestStream


@dataclass(frozen=True, slots=True)
class WatcherOptions:
    """Limits.

    Attributes:
        watchers_max: watch streams.
        checks_max: transaction checks that wait for one stream.
        check_bytes_max: bytes of their messages.
        checks_per_answer: checks in one message of the stream.
        interests_max: places of which brokers want to be told, or were not told yet.
        places_per_answer: places in one message of the stream.
    """

    watchers_max: int = 1_000
    checks_max: int = 1_000
    check_bytes_max: int = 16 * 1024 * 1024
    checks_per_answer: int = 16
    interests_max: int = 100_000
    places_per_answer: int = 1_000


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """A half message whose producer is to be asked; fields as in `strata.storage.v1`."""

    raft_group: int
    raft_index: int
    ordinal: int
    topic_id: int
    number: int
    exhausted: bool
    store_time_ms: int
    message: bytes


@dataclass(frozen=True, slots=True)
class WatchUpdate:
    """News for one broker: all raft groups led here (None: as told before), checks or places.

    `health`: what the node says of itself; with the raft groups, None: as told before.
    `wants_reports`: the broker is to report which of the checks it gave to a producer.
    """

    led_groups: Sequence[int] | None
    checks: Sequence[TransactionCheck] = ()
    health: meta.StorageHealth | None = None
    deliverable: Sequence[DeliverablePlace] = ()
    wants_reports: bool = False


class _Watch:
    """One stream."""

    __slots__ = (
        "boot_id",
        "check_bytes",
        "checks",
        "interests",
        "number",
        "reports_checks",
        "roles_changed",
        "wake",
    )

    def __init__(
        self, boot_id: int, number: int, interests: Interests, *, reports_checks: bool
    ) -> None:
        self.boot_id = boot_id
        self.number = number
        self.reports_checks = reports_checks
        self.wake = asyncio.Event()
        self.interests = InterestStream(interests, self.wake.set)
        self.roles_changed = True
        self.checks: deque[TransactionCheck] = deque()
        self.check_bytes = 0

    def take_checks(self, limit: int) -> list[TransactionCheck]:
        """Remove and return the checks that waited longest."""
        taken = [self.checks.popleft() for _ in range(min(limit, len(self.checks)))]
        self.check_bytes -= sum(len(check.message) for check in taken)
        return taken


class Watchers:
    """The watch streams of a node.

    Args:
        options: limits.
    """

    def __init__(self, options: WatcherOptions | None = None) -> None:
        self._options = options or WatcherOptions()
        self._led: set[int] = set()
        self._health = meta.StorageHealth()
        self._interests = Interests(self._options.interests_max)
        # A dict for its order: they are told in the order in which they came.
        self._watches: dict[_Watch, None] = {}

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def checks_waiting(self) -> int:
        """Checks that no broker has taken yet."""
        return sum(len(watch.checks) for watch in self._watches)

    @property
    def interests_used(self) -> int:
        """Places of which brokers want to be told, or were not told yet."""
        return self._interests.used

    def led_groups(self) -> list[int]:
        """Return the raft groups led here, in order."""
        return sorted(self._led)

    def boot_ids(self) -> list[int]:
        """Return the brokers that watch, one that watches twice once."""
        return list(dict.fromkeys(watch.boot_id for watch in self._watches))

    def changed(self, raft_group: int, leads: bool) -> None:
        """Take in that this node leads a raft group, or does not any more."""
        if leads == (raft_group in self._led):
            return
        if leads:
            self._led.add(raft_group)
        else:
            self._led.discard(raft_group)
        self._tell_all()

    def health_changed(self, health: meta.StorageHealth) -> None:
        """Take in what this node says of itself now."""
        self._health = health
        self._tell_all()

    def _tell_all(self) -> None:
        for watch in self._watches:
            watch.roles_changed = True
            watch.wake.set()

    def offer(self, boot_id: int, check: TransactionCheck) -> bool:
        """Give a broker a check to carry out; whether it has a stream with room."""
        options = self._options
        for watch in reversed(self._watches):
            if watch.boot_id != boot_id or len(watch.checks) >= options.checks_max:
                continue
            if watch.checks and watch.check_bytes + len(check.message) > options.check_bytes_max:
                continue
            watch.checks.append(check)
            watch.check_bytes += len(check.message)
            watch.wake.set()
            return True
        return False

    def reports_checks(self, boot_id: int) -> bool:
        """Whether a broker reports the checks that it gave to a producer; an older one does not."""
        watches = [watch for watch in self._watches if watch.boot_id == boot_id]
        return bool(watches) and all(watch.reports_checks for watch in watches)

    def stream(self, boot_id: int, number: int) -> InterestStream | None:
        """Return a broker's stream by the number that the broker gave it; None: not open here."""
        if not number:
            return None
        for watch in self._watches:
            if watch.boot_id == boot_id and watch.number == number:
                return watch.interests
        return None

    async def updates(
        self, boot_id: int, number: int = 0, *, reports: bool = False
    ) -> AsyncGenerator[WatchUpdate]:
        """Yield what a broker is to know: the leaderships first, then whatever comes.

        Args:
            boot_id: of the broker.
            number: what it calls this stream; 0: no pop of it wants to be told on it.
            reports: whether it reports the checks that it gave to a producer.

        Raises:
            Refused: OUTCOME_OVERLOADED, too many watch.
        """
        options = self._options
        if len(self._watches) >= options.watchers_max:
            raise Refused(pb.OUTCOME_OVERLOADED, f"{options.watchers_max} brokers watch already")
        watch = _Watch(boot_id, number, self._interests, reports_checks=reports)
        self._watches[watch] = None
        try:
            while True:
                watch.wake.clear()
                if watch.roles_changed:
                    watch.roles_changed = False
                    yield WatchUpdate(self.led_groups(), health=self._health)
                while watch.checks and not watch.roles_changed:
                    checks = watch.take_checks(options.checks_per_answer)
                    yield WatchUpdate(None, checks, wants_reports=reports)
                while watch.interests.has_news and not watch.roles_changed:
                    told = watch.interests.take_told(options.places_per_answer)
                    yield WatchUpdate(None, deliverable=told)
                if not watch.wake.is_set():
                    await watch.wake.wait()
        finally:
            del self._watches[watch]
            watch.interests.end()
