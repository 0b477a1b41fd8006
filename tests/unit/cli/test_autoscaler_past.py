"""The past of a forecast from stored metric windows, as `strata autoscaler` reads it."""

from __future__ import annotations

import time
from typing import Any

from structlog.testing import capture_logs

from strata_cli.processes.autoscaler import BrokerReader
from strata_placement.autoscaling.rates import RateHistory
from strata_placement.autoscaling.reader import Past
from strata_placement.autoscaling.trigger import trigger_of
from strata_runtime.windows import WindowBatch, WindowKind
from tests.unit.cli.test_placement_facts import FakeClient, batch, queue_row, stored

MINUTE_MS = 60_000
# A row of `queue_row` has messages of 1 KiB, for each second of a window.
PER_WINDOW = 10 * 1_024


async def past(batches: list[WindowBatch]) -> Past:
    """Return the messages per second of the last hour, by minute."""
    client: Any = FakeClient(stored(batches), page_size=1_000)
    trigger = trigger_of({"metric": "forecast", "target": "1"})
    since_ms = int(time.time() * 1_000) - 3_600_000
    return await BrokerReader(client).past(trigger, since_ms, MINUTE_MS)


def busy(windows: range, node_id: str = "node-1") -> list[WindowBatch]:
    return [
        batch(WindowKind.QUEUE, node_id, window, [queue_row("t", 0, 1, 1, 0)]) for window in windows
    ]


def messages(of: Past) -> int:
    return round(sum(of.values) * MINUTE_MS / 1_000)


async def test_a_batch_that_came_twice_counts_once() -> None:
    """Two brokers may publish the same window."""
    batches = busy(range(-30, 6))
    once = await past(batches)
    assert messages(once) % PER_WINDOW == 0
    assert 30 * PER_WINDOW <= messages(once) <= 36 * PER_WINDOW
    assert await past(batches * 2) == once


async def test_a_clock_ahead_does_not_freeze_a_forecast() -> None:
    """A window of six hours ahead does not count and is told; windows go on ending."""
    batches = busy(range(-30, 6))
    with capture_logs() as logs:
        found = await past([*batches, *busy(range(2_160, 2_161), "node-2")])
    assert found == await past(batches)
    [line] = logs
    assert line["log_level"] == "warning"
    assert "1 of node-2 begin after now" in line["reasons"][0]
    history = RateHistory(MINUTE_MS, 2_880)
    history.begin(found.start_ms, found.values)
    now_ms = int(time.time() * 1_000)
    ended = [history.observe(now_ms + minute * MINUTE_MS, 1e6) for minute in range(1, 5)]
    assert ended[1:] == [True] * 3
    assert history.highest == 1e6


async def test_minutes_in_which_all_queues_are_idle_are_zeros() -> None:
    """Storage nodes write windows of themselves then: the last load does not go on."""
    idle = [
        batch(WindowKind.NODE, "node-1", window, [{"node_kind": "storage"}])
        for window in range(-120, 6)
    ]
    found = await past(busy(range(-120, -90)) + idle)
    assert len(found.values) >= 20
    assert messages(found) == 30 * PER_WINDOW
    assert list(found.values[-10:]) == [0.0] * 10
