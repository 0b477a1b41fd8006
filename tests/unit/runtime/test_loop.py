"""The server's loop: rule 30's switch interval, lag that is seen."""

from __future__ import annotations

import asyncio
import sys

from strata_runtime.loop import SWITCH_INTERVAL_S, LoopLag, run
from strata_runtime.metrics import Metrics


def test_run_sets_the_switch_interval_and_returns() -> None:
    """`run` returns main's result and runs it with a switch interval of 0.1 ms (rule 30)."""
    before_s = sys.getswitchinterval()

    async def main() -> float:
        return sys.getswitchinterval()

    try:
        assert round(run(main()), 6) == SWITCH_INTERVAL_S == 0.0001
    finally:
        sys.setswitchinterval(before_s)


async def test_lag_is_recorded_and_told() -> None:
    """A late timer is recorded, shown as the worst since the last scrape, and told to on_lag."""
    metrics = Metrics()
    told: list[float] = []
    lag = LoopLag(metrics, on_lag=told.append)
    loop = asyncio.get_running_loop()
    lag._measure(loop, loop.time() - 0.5)
    assert 0.5 <= told[0] < 5
    assert metrics.histogram("strata_loop_lag_ms").count() == 1
    metrics.read_gauges()
    (line,) = [
        line
        for line in metrics.render().decode().splitlines()
        if line.startswith("strata_loop_lag_max_ms ")
    ]
    assert float(line.split()[1]) >= 500
    metrics.read_gauges()
    assert b"strata_loop_lag_max_ms 0.0" in metrics.render()
    await lag.stop(0)
