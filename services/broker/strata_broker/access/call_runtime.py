"""Configuration, clock, counters and access control: all calls of clients run on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from strata_broker.access.authentication import Authenticator
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.recorder import Recorder
from strata_edge.passes import NativePasses
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks


@dataclass(frozen=True, slots=True)
class CallRuntime:
    """Parts that everything that serves calls of clients has.

    Attributes:
        config: of the broker.
        clock: time.
        requests: own what a call leaves running, and note its unexpected failure.
        recorder: counts messages and answers.
        metrics: where everything is counted.
        access: knows who calls.
        handles: signs and reads handles of messages.
        passes: native passes over hot calls; None: Python does all.
        marks: names of user properties that make a message a plugin's.
    """

    config: BrokerConfig
    clock: Clock
    requests: RequestTasks
    recorder: Recorder
    metrics: Metrics
    access: Authenticator
    handles: HandleSigner
    passes: NativePasses | None = None
    marks: Collection[str] = ()
