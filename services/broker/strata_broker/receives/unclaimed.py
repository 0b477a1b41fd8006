"""Takes back what was given to clients that cancel their receives and never claim a message.

The edge says whether an answer left; it cannot say whether the application read it. A client that
cancels a receive just after its answer arrived holds the leases all the same, and as long as it
lives its auto-renewed leases do not end (rule 25). A client that does this again and again is known
by two things together: it cancels receives that hardly began to wait, and it claims nothing: no
acknowledgement, no change of the invisible time, no dead letter. Its messages go to others.

Invariants: a client that claims a message keeps all that it was given before; a client that cancels
fewer receives than the limit keeps everything; what is taken back counts as no attempt (rule 36).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from strata_broker.base.receive_config import ReceiveSection
from strata_runtime.clock import Clock
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

# A receive that was cancelled later than this waited as receives do: a deadline, a stop.
_HASTY_S = 1.0
# Cancelled receives count together within this time.
_WINDOW_S = 60.0


class _Record:
    """Messages that a client got since it claimed one, and how many receives it cancelled."""

    __slots__ = ("answers", "cancelled", "leases", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.cancelled = 0
        self.leases = 0
        self.answers: list[Callable[[], None]] = []


class Unclaimed:
    """See the module docstring. Used on the event loop only.

    Args:
        config: its limits.
        clock: measures how long a receive waited.
        metrics: counts answers that were taken back.
    """

    def __init__(self, config: ReceiveSection, clock: Clock, metrics: Metrics) -> None:
        self._max_cancelled = config.max_hasty_cancels
        self._clock = clock
        # By client id; the client that was heard of longest ago is first, and is forgotten first.
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._max_clients = config.max_unclaimed_clients
        self._leases = Limit(
            "unclaimed leases", config.max_unclaimed_leases, "leases", metrics=metrics
        )
        self._taken_back = metrics.counter("strata_broker_unclaimed_answers_total")
        metrics.gauge("strata_broker_unclaimed_clients", lambda: len(self._records))

    def gave(self, client_id: str, leases: int, take_back: Callable[[], None]) -> None:
        """Remember an answer that a client got.

        Args:
            client_id: of the client.
            leases: how many messages the answer has.
            take_back: releases them.
        """
        record = self._record(client_id)
        while not self._leases.try_take(leases):
            oldest = next(iter(self._records))
            if oldest == client_id and not record.leases:
                return
            self._forget(oldest)
            record = self._record(client_id)
        record.leases += leases
        record.answers.append(take_back)

    def claimed(self, client_id: str) -> None:
        """Note that a client used a receipt handle: it reads what it gets."""
        if client_id in self._records:
            self._forget(client_id)

    def cancelled(self, client_id: str, begun_s: float) -> None:
        """Note that a client cancelled a receive.

        Args:
            client_id: of the client.
            begun_s: when the receive came (monotonic seconds).
        """
        now_s = self._clock.monotonic_s()
        if now_s - begun_s > _HASTY_S:
            return
        record = self._record(client_id)
        if now_s - record.since_s > _WINDOW_S:
            record.since_s, record.cancelled = now_s, 0
        record.cancelled += 1
        if record.cancelled < self._max_cancelled:
            return
        answers, record.answers = record.answers, []
        self._leases.give_back(record.leases)
        record.leases = 0
        self._taken_back.add(len(answers))
        for take_back in answers:
            take_back()

    def _record(self, client_id: str) -> _Record:
        record = self._records.get(client_id)
        if record is None:
            record = self._records[client_id] = _Record(self._clock.monotonic_s())
            if len(self._records) > self._max_clients:
                self._forget(next(iter(self._records)))
        self._records.move_to_end(client_id)
        return record

    def _forget(self, client_id: str) -> None:
        self._leases.give_back(self._records.pop(client_id).leases)
