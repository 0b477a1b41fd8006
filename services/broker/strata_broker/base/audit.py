"""The audit trail: one event for each change, refusal and sign-in; who, what, from where, outcome.

Callers say what happened and wait for nothing. An event goes to every sink (the log, a file, a
topic). A flood of refusals costs a look at two token buckets: an address and the broker as a whole
have a rate, and the next event of that address says how many were left out. Changes are never left
out. No text that an event takes may hold a secret.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pydantic import Field

from strata_broker.base.token_bucket import TokenBucket
from strata_runtime.audit import AuditEvent, AuditSink
from strata_runtime.clock import Clock
from strata_runtime.config import Section
from strata_runtime.logs import AUDIT, get_logger
from strata_runtime.metrics import Metrics

MAX_TEXT = 500
"""Characters of a text in an event; the rest is cut off."""

_BURST_S = 10.0
# (event, outcome) -> line of the log
_LINES = {
    ("changed", "done"): "cluster changed",
    ("changed", "unknown"): "cluster may have changed",
    ("refused", "refused"): "call refused",
    ("signed in", "done"): "user signed in",
}


class Audited(NamedTuple):
    """The caller behind an event.

    Attributes:
        user: whose key signed the call; empty: nobody's, or access is not controlled, so that no
            name was verified.
        peer: address, `host:port`.
        client_id: as the client calls itself.
    """

    user: str = ""
    peer: str = ""
    client_id: str = ""


class FirstUse(NamedTuple):
    """A call that makes what it needs, a topic for instance, because nobody made it before.

    Attributes:
        who: the caller.
        rpc: name of the call.
    """

    who: Audited = Audited()
    rpc: str = "own work of the broker"


class AuditTrail(Protocol):
    """Where events are told. Used on the event loop only."""

    def changed(self, who: Audited, rpc: str, request: str) -> None:
        """Record that a call changed the cluster.

        Args:
            who: the caller.
            rpc: name of the call.
            request: what was asked, as text without secrets.
        """

    def unclear_change(self, who: Audited, rpc: str, request: str) -> None:
        """Record that a call may have changed the cluster: nobody knows how it ended.

        Args:
            who: the caller.
            rpc: name of the call.
            request: see `changed`.
        """

    def refused(self, who: Audited, rpc: str, resource: str, reason: str) -> None:
        """Record that a call was refused: the caller is unknown, or may not do it.

        Args:
            who: the caller; `user` as it was claimed.
            rpc: name of the call.
            resource: that it was about, `topic:shop/orders`; empty: it did not come so far.
            reason: short and constant: `bad signature`, `no policy allows pub`.
        """

    def signed_in(self, who: Audited) -> None:
        """Record that a user's key was verified; repeats within an interval are no event."""


class NoAudit:
    """An `AuditTrail` that keeps nothing."""

    def changed(self, who: Audited, rpc: str, request: str) -> None:
        """See `AuditTrail`."""

    def unclear_change(self, who: Audited, rpc: str, request: str) -> None:
        """See `AuditTrail`."""

    def refused(self, who: Audited, rpc: str, resource: str, reason: str) -> None:
        """See `AuditTrail`."""

    def signed_in(self, who: Audited) -> None:
        """See `AuditTrail`."""


class LogSink:
    """An `AuditSink`: lines of the component `audit` in the process's log (`node.audit_log`)."""

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""
        more = {key: value for key, value in event.items() if key not in ("time_ms", "event")}
        # The logger of now: logging may have been configured again.
        get_logger(AUDIT).info(_LINES[str(event["event"]), str(event["outcome"])], **more)


class AuditSection(Section):
    """The audit trail: changes, refusals and sign-ins."""

    topic: bool = Field(
        default=False, description="Send each event as a message to the topic __strata_audit, too."
    )
    topic_retention_ms: int = Field(
        default=30 * 86_400_000,
        ge=1_000,
        description="Retention of that topic when this broker makes it.",
    )
    max_waiting_events: int = Field(
        default=1_000,
        ge=1,
        description="Most events that wait to be sent to the topic; further ones are counted as "
        "dropped.",
    )
    max_refusals_per_s: int = Field(
        default=100,
        ge=1,
        description="Refusals and sign-ins that become events per second; further ones are only "
        "counted.",
    )
    max_refusals_per_address_per_s: int = Field(
        default=10, ge=1, description="The same for the callers of one address."
    )
    max_addresses: int = Field(
        default=10_000, ge=1, description="Most addresses and signed-in users that are remembered."
    )
    sign_in_interval_ms: int = Field(
        default=3_600_000,
        ge=1,
        description="A user who signs in again from the same address within so much time is no "
        "event.",
    )


class AuditRecorder:
    """The `AuditTrail` of a broker.

    Args:
        sinks: take the events; `add` brings others.
        config: rates.
        clock: time of events.
        metrics: what was recorded and left out.
    """

    def __init__(
        self, sinks: Sequence[AuditSink], config: AuditSection, clock: Clock, *, metrics: Metrics
    ) -> None:
        self._sinks = list(sinks)
        self._config = config
        self._clock = clock
        self._all = TokenBucket(config.max_refusals_per_s, _BURST_S, clock.monotonic_s())
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        # (user, address) -> when the sign-in was an event
        self._signed_in: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._events_total = metrics.counter("strata_broker_audit_events_total")
        self._left_out_total = metrics.counter("strata_broker_audit_left_out_total")
        metrics.gauge("strata_broker_audit_addresses", lambda: len(self._addresses))
        metrics.gauge("strata_broker_audit_addresses_maximum", lambda: config.max_addresses)

    def add(self, sink: AuditSink) -> None:
        """Give a sink the events from now on."""
        self._sinks.append(sink)

    def changed(self, who: Audited, rpc: str, request: str) -> None:
        """See `AuditTrail`."""
        self._tell("changed", "done", who, rpc=rpc, request=shortened(request))

    def unclear_change(self, who: Audited, rpc: str, request: str) -> None:
        """See `AuditTrail`."""
        self._tell("changed", "unknown", who, rpc=rpc, request=shortened(request))

    def refused(self, who: Audited, rpc: str, resource: str, reason: str) -> None:
        """See `AuditTrail`."""
        left_out = self._admit(who)
        if left_out is None:
            self._left_out_total.add(1, {"event": "refused"})
            return
        self._tell(
            *("refused", "refused", who),
            rpc=rpc,
            resource=shortened(resource),
            reason=shortened(reason),
            left_out=left_out,
        )

    def signed_in(self, who: Audited) -> None:
        """See `AuditTrail`."""
        now_s = self._clock.monotonic_s()
        key = (who.user, address_of(who.peer))
        before_s = self._signed_in.get(key)
        if before_s is not None and (now_s - before_s) * 1_000 < self._config.sign_in_interval_ms:
            return
        left_out = self._admit(who)
        if left_out is None:
            self._left_out_total.add(1, {"event": "signed in"})
            return
        while len(self._signed_in) >= self._config.max_addresses:
            self._signed_in.popitem(last=False)
        self._signed_in[key] = now_s
        self._tell("signed in", "done", who, left_out=left_out)

    def _admit(self, who: Audited) -> int | None:
        """Return how many events of the address were left out before this one; None: it is, too."""
        now_s = self._clock.monotonic_s()
        address = address_of(who.peer)
        known = self._addresses.get(address)
        if known is None:
            while len(self._addresses) >= self._config.max_addresses:
                self._addresses.popitem(last=False)
            rate_per_s = self._config.max_refusals_per_address_per_s
            known = self._addresses[address] = _Address(rate_per_s, now_s)
        if not (known.bucket.in_credit(now_s) and self._all.in_credit(now_s)):
            known.left_out += 1
            return None
        known.bucket.take(1)
        self._all.take(1)
        left_out, known.left_out = known.left_out, 0
        return left_out

    def _tell(self, event: str, outcome: str, who: Audited, **more: str | int) -> None:
        told: AuditEvent = {
            "time_ms": self._clock.wall_ms(),
            "event": event,
            "outcome": outcome,
            "user": shortened(who.user),
            "peer": who.peer,
            "client_id": shortened(who.client_id),
            **{key: value for key, value in more.items() if value or key != "left_out"},
        }
        self._events_total.add(1, {"event": event})
        for sink in self._sinks:
            sink.write(told)


class _Address:
    __slots__ = ("bucket", "left_out")

    def __init__(self, rate_per_s: int, now_s: float) -> None:
        self.bucket = TokenBucket(rate_per_s, _BURST_S, now_s)
        self.left_out = 0


def shortened(text: str) -> str:
    """Return a text as it fits into an event."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def address_of(peer: str) -> str:
    """Return a caller's address without its port."""
    return peer.rpartition(":")[0].strip("[]") or peer
