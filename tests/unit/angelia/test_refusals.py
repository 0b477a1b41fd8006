"""Events of callers that are refused between the tiers."""

from __future__ import annotations

from strata_angelia.refusals import AuditedRefusals
from strata_runtime.audit import AuditEvent
from strata_testing import ManualClock


class Events:
    """An audit trail."""

    def __init__(self) -> None:
        self.all: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.all.append(event)


def test_a_flood_is_cut_and_counted() -> None:
    """Strangers do not fill the file; the next event says how many were left out."""
    clock = ManualClock()
    refusals, events = AuditedRefusals(2, clock), Events()
    refusals.sink = events
    for number in range(5):
        refusals.tell(f"10.0.0.1:{number}", "it does not speak TLS")
    clock.advance(1.0)
    refusals.tell("10.0.0.1:9", "it was silent")
    refusals.tell("10.0.0.1:10", "it was silent")
    assert [(event["peer"], event.get("left_out", 0)) for event in events.all] == [
        ("10.0.0.1:0", 0),
        ("10.0.0.1:1", 0),
        ("10.0.0.1:9", 3),
        ("10.0.0.1:10", 0),
    ]
    assert {event["event"] for event in events.all} == {"refused"}


def test_nobody_listens_at_first() -> None:
    """A process without a file for its audit trail tells nobody."""
    AuditedRefusals().tell("10.0.0.1:1", "it was silent")
