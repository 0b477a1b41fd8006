"""The windows that a storage node closes, and which of them it still has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def _meter(*engines: _Engine, max_rows: int = 10) -> tuple[WindowMeter, ManualClock, Metrics]:
    clock, metrics = ManualClock(50.003, wall_offset_ms=0), Metrics(METRICS)
    latency = metrics.histogram("strata_storage_append_ms")
    options = WindowMeterOptions(10_000, max_rows, max_kept=3)
    node: Any = _Node(*engines)
    return WindowMeter(node, metrics, latency, clock=clock, options=options), clock, metrics


def test_a_window_says_what_was_led_here() -> None:
    """Queues with traffic, consumer groups with a lag, and the sums; a follower's is left out."""
    leader, follower = _Engine(leads=True), _Engine(leads=False)
    meter, _, metrics = _meter(leader, follower)
    metrics.histogram("strata_storage_append_ms").record(3)
    for engine in (leader, follower):
        engine.machine.traffic.stored(7, 1, 6, 600)
        engine.machine.traffic.delivered(9, 7, [(1, 100), (1, 100)])
    window = meter.close()
    assert (window.start_ms, window.length_ms) == (40_000, 10_000)
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
    assert (list(groups.lag_ms), list(groups.queueing_ms)) == ([6_003], [5_003])
    node = window.node
    assert (node.messages_in, node.bytes_out, node.lag_messages, node.leases) == (6, 200, 6, 1)
    assert (node.leaders, node.log_bytes, node.disk_free_bytes) == (1, 300, 1_000)
    assert node.appends.count == 1
    assert 2.5 <= node.appends.p99_ms <= 5
    assert follower.machine.traffic.take() == ({}, {}), "nothing piles up where nobody asks"


def test_only_the_busiest_queues_have_rows() -> None:
    """The sums are of all."""
    leader = _Engine(leads=True)
    meter, _, _ = _meter(leader, max_rows=2)
    for queue, size_bytes in enumerate((10, 40, 20, 30)):
        leader.machine.traffic.stored(7, queue, 1, size_bytes)
    window = meter.close()
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


def test_a_late_broker_gets_the_windows_one_by_one() -> None:
    """In order, from the oldest that is kept; what is older than these is gone."""
    meter, clock, _ = _meter(_Engine(leads=True))
    assert meter.after(0) is None
    for _ in range(5):
        meter.keep()
        clock.advance(10)
    starts, at = [], 0
    while (window := meter.after(at)) is not None:
        at = window.start_ms
        starts.append(at)
    assert starts == [60_000, 70_000, 80_000]
