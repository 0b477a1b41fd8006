"""Clock, chance, metrics and tracer: a process gives them to each of its services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import randint
from secrets import token_bytes

from strata_runtime.audit import AuditSink, NoAuditSink
from strata_runtime.backoff import Random
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal
from strata_runtime.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Runtime:
    """Clock, chance, metrics and the like of a service; tests and the simulation give others.

    Attributes:
        clock: time.
        random: numbers in [0, 1).
        metrics: where everything is counted.
        on_fatal: called when a permanent loop fails; a failure in one request ends only that one.
        tracer: traces messages.
        random_between: whole numbers between two, both included.
        random_bytes: so many bytes that nobody can guess, for keys.
        audit: where the process writes its audit trail.
    """

    clock: Clock
    random: Random
    metrics: Metrics
    on_fatal: OnFatal
    tracer: Tracer = field(default_factory=Tracer.disabled)
    random_between: Callable[[int, int], int] = randint
    random_bytes: Callable[[int], bytes] = token_bytes
    audit: AuditSink = field(default_factory=NoAuditSink)
