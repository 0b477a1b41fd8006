"""The windows that a storage node closes, and which of them it still has."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.rows import QueueRow
from strata_runtime.metrics import Metrics
from strata_storage.process.metrics import METRICS
from strata_storage.rows.traffic import Traffic
from strata_storage.servicers.window_meter import WindowMeter, WindowMeterOptions, _Loads
from strata_testing import ManualClock


class _LeaseSet:
    """A consumer group with one lease, at offset 4."""

    key = (9, 7, 1)
    leases = SimpleNamespace(cursor=lambda: 4, head=5, in_flight=1)


class _Queues:
    def get(self, topic_id: int, queue: int) -> QueueRow:
        return QueueRow(10, 2, 0, 0)


class _ConsumeQueues:
    """Every offset was stored a second later than the one before, the first one at 40,000 ms."""

    def next_run(self, topic_id: int, queue: int, offset: int) -> Any:
        return offset, SimpleNamespace(store_time_ms=40_000 + 1_000 * offset)


class _Engine:
    raft_group = 5

    def __init__(self, leads: bool) -> None:
        self.machine = SimpleNamespace(
            traffic=Traffic(), queues=_Queues(), consume_queues=_ConsumeQueues()
        )
        sets = SimpleNamespace(loaded=lambda: [_LeaseSet()])
        self._leader = SimpleNamespace(sets=sets) if leads else None

    def active_leader(self) -> Any:
        return self._leader


class _Node:
    def __init__(self, *engines: _Engine) -> None:
        self._engines = engines

    def engines(self) -> Any:
        return self._engines

    def replicas(self) -> Any:
        return {5: SimpleNamespace(is_ready_leader=lambda: True)}

    def log_bytes(self) -> tuple[int, int]:
        return 300, 900

    def disk_bytes(self) -> tuple[int, int]:
        return 1_000, 4_000


def _meter(
    *engines: _Engine, max_rows: int = 10, max_kept: int = 3
) -> tuple[WindowMeter, ManualClock, Metrics]:
    clock, metrics = ManualClock(50.003, wall_offset_ms=0), Metrics(METRICS)
    latency = metrics.histogram("strata_storage_append_ms")
    options = WindowMeterOptions(10_000, max_rows, max_kept)
    node: Any = _Node(*engines)
    return WindowMeter(node, metrics, latency, clock=clock, options=options), clock, metrics


async def _windows(
    meter: WindowMeter, clock: ManualClock, *late_s: float
) -> list[pb.GetWindowResponse]:
    """Let the meter close a window for each of these times that its timer is late."""
    timers = iter(late_s)

    async def sleep(delay_s: float) -> None:
        if delay_s:
            late = next(timers, None)
            if late is None:
                raise asyncio.CancelledError
            clock.advance(delay_s + late)

    with patch.object(asyncio, "sleep", sleep), pytest.raises(asyncio.CancelledError):
        await meter.run()
    return list(meter._kept)


async def test_a_window_says_what_was_led_here() -> None:
    """Queues with traffic, consumer groups with a lag, and the sums; a follower's is left out."""
    leader, follower = _Engine(leads=True), _Engine(leads=False)
    meter, clock, metrics = _meter(leader, follower)
    metrics.histogram("strata_storage_append_ms").record(3)
    for engine in (leader, follower):
        engine.machine.traffic.stored(7, 1, 6, 600)
        engine.machine.traffic.delivered(9, 7, [(1, 100), (1, 100)])
    (window,) = await _windows(meter, clock, 0.003)
    assert (window.start_ms, window.length_ms) == (50_000, 10_000)
    queues = window.queues
    assert (list(queues.topic_ids), list(queues.queues), list(queues.raft_groups)) == (
        [7],
        [1],
        [5],
    )
    assert (list(queues.messages_in), list(queues.bytes_in)) == ([6], [600])
    assert (list(queues.messages_out), list(queues.bytes_out)) == ([2], [200])
    assert (list(queues.min_offsets), list(queues.end_offsets)) == ([2], [10])
    groups = window.consumer_groups
    assert (list(groups.lag_messages), list(groups.leases)) == ([6], [1])
    assert (list(groups.lag_ms), list(groups.queueing_ms)) == ([16_003], [15_003])
    node = window.node
    assert (node.messages_in, node.bytes_out, node.lag_messages, node.leases) == (6, 200, 6, 1)
    assert (node.leaders, node.log_bytes, node.disk_free_bytes) == (1, 300, 1_000)
    assert node.appends.count == 1
    assert 2.5 <= node.appends.p99_ms <= 5
    assert follower.machine.traffic.take() == ({}, {}), "nothing piles up where nobody asks"


async def test_only_the_busiest_queues_have_rows() -> None:
    """The sums are of all."""
    leader = _Engine(leads=True)
    meter, clock, _ = _meter(leader, max_rows=2)
    for queue, size_bytes in enumerate((10, 40, 20, 30)):
        leader.machine.traffic.stored(7, queue, 1, size_bytes)
    (window,) = await _windows(meter, clock, 0.0)
    assert list(window.queues.bytes_in) == [40, 30]
    assert window.node.bytes_in == 100


def test_a_window_is_collected_in_bounded_steps() -> None:
    """Other work goes on between them, however many queues and consumer groups there are."""
    leader = _Engine(leads=True)
    meter, _, _ = _meter(leader, max_rows=9)
    for queue in range(1_200):
        leader.machine.traffic.stored(7, queue, 1, 10)
    leader.active_leader().sets.loaded = lambda: [_LeaseSet()] * 900
    loads = _Loads({}, {})
    assert sum(1 for _ in meter._collect(loads)) == 2_100 // 500
    assert (len(loads.queues), len(loads.consumers)) == (1_200, 1)


def test_a_window_is_filled_in_bounded_steps() -> None:
    """Both tables; rows with ages take reads of an index, so that fewer of them are a step."""
    leader = _Engine(leads=True)
    meter, _, _ = _meter(leader, max_rows=2_000)
    keys = [(9, 7, queue) for queue in range(1_200)]
    for queue in range(1_200):
        leader.machine.traffic.stored(7, queue, 1, 10)
    leader.active_leader().sets.loaded = lambda: [
        SimpleNamespace(key=key, leases=_LeaseSet.leases) for key in keys
    ]
    window = meter._new_window(40_000)
    queues, groups = window.queues, window.consumer_groups
    written, aged = [0], [0]
    for _ in meter._measure(window):
        written.append(len(queues.queues) + len(groups.queues))
        aged.append(sum(1 for age_ms in groups.lag_ms if age_ms))
    assert len(queues.queues) == len(groups.queues) == len(groups.queueing_ms) == 1_200
    # The rest of one table, and the first rows of the next one.
    assert max(after - before for before, after in pairwise(written)) == 500
    assert max(after - before for before, after in pairwise(aged)) == 50
    assert aged[-1] == 500


async def test_a_late_broker_gets_the_windows_one_by_one() -> None:
    """In order, from the oldest that is kept; what is older than these is gone."""
    meter, clock, _ = _meter(_Engine(leads=True))
    assert meter.after(0) is None
    await _windows(meter, clock, *[0.0] * 5)
    starts, at = [], 0
    while (window := meter.after(at)) is not None:
        at = window.start_ms
        starts.append(at)
    assert starts == [70_000, 80_000, 90_000]


async def test_no_two_windows_have_the_same_time() -> None:
    """However late or early the timer is: a broker would never ask for the second one."""
    meter, clock, _ = _meter(_Engine(leads=True), max_kept=10)
    windows = await _windows(meter, clock, 0.0, 6.0, 0.0, -0.002, 0.0, 25.0, 0.0)
    starts = [window.start_ms for window in windows]
    assert len(starts) == 7
    assert starts == sorted(set(starts))
    assert starts[:4] == [50_000, 60_000, 70_000, 80_000]
