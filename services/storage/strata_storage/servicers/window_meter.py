"""Closes a metric window every ten seconds: what this node measured in it, as columns of ids.

A broker asks for them one by one (`GetWindow`), puts names to the ids and publishes them; see
`strata_runtime.windows` for what the columns mean. Rows are those of raft groups led here, where
something happened or a consumer group in memory has a lag; the busiest `max_rows` of each kind.

Windows begin at multiples of their length, by wall time, so that those of all nodes line up.
"""

from __future__ import annotations

import asyncio
import heapq
import resource
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import QueueRow
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_runtime.metrics import Histogram, Metrics
from strata_runtime.quantiles import HistogramWindow, Quantiles
from strata_runtime.windows import WINDOW_MS
from strata_storage.group.engine import GroupEngine
from strata_storage.group.engines import Engines
from strata_storage.rows.traffic import Amount, ConsumerKey, QueueKey

_EMPTY_QUEUE = QueueRow(0, 0, 0, 0)
_NOTHING = Amount(0, 0)
# Rows that are looked at, or written, in one turn of the event loop.
_ROWS_PER_STEP = 500
# Rows with ages likewise: each takes two reads of an index.
_AGED_ROWS_PER_STEP = 50


@dataclass(frozen=True, slots=True)
class WindowMeterOptions:
    """Length and size.

    Attributes:
        length_ms: of a window.
        max_rows: queues, and consumer groups on queues, of one window.
        max_kept: windows kept for a broker that is late; the oldest goes.
        max_aged: consumer groups on queues, those with most to do, whose oldest message is looked
            up: two reads of an index each.
    """

    length_ms: int = WINDOW_MS
    max_rows: int = 10_000
    max_kept: int = 6
    max_aged: int = 500


class MeteredNode(Engines, Protocol):
    """The part of the storage node that is needed."""

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""

    def log_bytes(self) -> tuple[int, int]:
        """Return (bytes on disk, bytes ever appended) of the log."""

    def disk_bytes(self) -> tuple[int, int]:
        """Return (free, total) bytes of the log's disk."""


class _QueueLoad(NamedTuple):
    raft_group: int
    row: QueueRow
    stored: Amount
    delivered: Amount


class _ConsumerLoad(NamedTuple):
    engine: GroupEngine
    delivered: int
    lag: int
    leases: int
    cursor: int
    head: int


class _Loads(NamedTuple):
    queues: dict[QueueKey, _QueueLoad]
    consumers: dict[ConsumerKey, _ConsumerLoad]


class WindowMeter:
    """See the module docstring.

    Args:
        node: what is measured.
        metrics: where appends, syncs and loop lag are counted.
        append_latency: of appends, in ms.
        clock: wall time.
        options: length and size.
    """

    def __init__(
        self,
        node: MeteredNode,
        metrics: Metrics,
        append_latency: Histogram,
        *,
        clock: Clock,
        options: WindowMeterOptions | None = None,
    ) -> None:
        self._node = node
        self._clock = clock
        self._options = options or WindowMeterOptions()
        self._appends = HistogramWindow(append_latency)
        sync, lag = (
            _histogram(metrics, "strata_log_sync_ms"),
            _histogram(metrics, "strata_loop_lag_ms"),
        )
        self._syncs = HistogramWindow(sync, {"log": "storage"})
        self._loop_lag = HistogramWindow(lag)
        self._cpu_s = time.process_time()
        self._since_s = clock.monotonic_s()
        self._kept: deque[pb.GetWindowResponse] = deque(maxlen=self._options.max_kept)

    async def run(self) -> None:
        """Close a window at each multiple of the length."""
        length_ms, end_ms = self._options.length_ms, 0
        while True:
            now_ms = self._clock.wall_ms()
            # However late or early the timer was, no two windows have the same time: a broker asks
            # for those after the last one that it has.
            end_ms = max(now_ms // length_ms * length_ms, end_ms) + length_ms
            await asyncio.sleep(min(end_ms - now_ms, 2 * length_ms) / 1_000)
            window = self._new_window(end_ms - length_ms)
            for _ in self._measure(window):
                # Other work goes on: twenty thousand lease sets took half a second.
                await asyncio.sleep(0)
            self._kept.append(window)

    def after(self, start_ms: int) -> pb.GetWindowResponse | None:
        """Return the oldest kept window that begins later than a time; None: there is none."""
        return next((window for window in self._kept if window.start_ms > start_ms), None)

    def _new_window(self, start_ms: int) -> pb.GetWindowResponse:
        return pb.GetWindowResponse(start_ms=start_ms, length_ms=self._options.length_ms)

    def _measure(self, window: pb.GetWindowResponse) -> Iterator[None]:
        """Fill a window step by step; each step looks at a bounded number of rows."""
        loads = _Loads({}, {})
        yield from self._collect(loads)
        self._fill_node(window.node, *loads)
        yield
        yield from self._fill_queues(window.queues, loads.queues)
        yield from self._fill_consumers(window.consumer_groups, loads.consumers)

    def _fill_queues(
        self, columns: pb.QueueWindows, queues: Mapping[QueueKey, _QueueLoad]
    ) -> Iterator[None]:
        for number, ((topic_id, queue), load) in enumerate(self._busiest_queues(queues), 1):
            columns.topic_ids.append(topic_id)
            columns.queues.append(queue)
            columns.raft_groups.append(load.raft_group)
            columns.messages_in.append(load.stored.messages)
            columns.bytes_in.append(load.stored.size_bytes)
            columns.messages_out.append(load.delivered.messages)
            columns.bytes_out.append(load.delivered.size_bytes)
            columns.min_offsets.append(load.row.min_offset)
            columns.end_offsets.append(load.row.next_offset)
            if number % _ROWS_PER_STEP == 0:
                yield

    def _fill_consumers(
        self, rows: pb.ConsumerGroupWindows, consumers: Mapping[ConsumerKey, _ConsumerLoad]
    ) -> Iterator[None]:
        busiest = self._busiest_consumers(consumers)
        for number, ((consumer_group_id, topic_id, queue), consumer) in enumerate(busiest, 1):
            rows.consumer_group_ids.append(consumer_group_id)
            rows.topic_ids.append(topic_id)
            rows.queues.append(queue)
            rows.raft_groups.append(consumer.engine.raft_group)
            rows.messages_out.append(consumer.delivered)
            rows.lag_messages.append(consumer.lag)
            rows.leases.append(consumer.leases)
            is_looked_up = number <= self._options.max_aged
            for ages, offset in ((rows.lag_ms, consumer.cursor), (rows.queueing_ms, consumer.head)):
                ages.append(
                    self._age_ms(consumer.engine, topic_id, queue, offset) if is_looked_up else 0
                )
            if number % (_AGED_ROWS_PER_STEP if is_looked_up else _ROWS_PER_STEP) == 0:
                yield

    def _age_ms(self, engine: GroupEngine, topic_id: int, queue: int, offset: int) -> int:
        """Return for how long a message, or the next one there is, has been stored."""
        found = engine.machine.consume_queues.next_run(topic_id, queue, offset)
        return max(0, self._clock.wall_ms() - found[1].store_time_ms) if found is not None else 0

    def _collect(self, loads: _Loads) -> Iterator[None]:
        """Add the loads of this node step by step; each step looks at a bounded number of rows."""
        queues, consumers = loads
        looked_at = 0
        for engine in list(self._node.engines()):
            stored, delivered = engine.machine.traffic.take()
            leader = engine.active_leader()
            if leader is None:
                continue
            raft_group, rows = engine.raft_group, engine.machine.queues
            out: dict[QueueKey, Amount] = {}
            for (_, topic_id, queue), amount in delivered.items():
                before = out.get((topic_id, queue), _NOTHING)
                out[topic_id, queue] = Amount(
                    before.messages + amount.messages, before.size_bytes + amount.size_bytes
                )
            for key in stored.keys() | out.keys():
                row = rows.get(*key) or _EMPTY_QUEUE
                queues[key] = _QueueLoad(
                    raft_group, row, stored.get(key, _NOTHING), out.get(key, _NOTHING)
                )
                looked_at += 1
                if looked_at % _ROWS_PER_STEP == 0:
                    yield
            for lease_set in leader.sets.loaded():
                leases = lease_set.leases
                end = (rows.get(*lease_set.key[1:]) or _EMPTY_QUEUE).next_offset
                lag = max(0, end - leases.cursor())
                given = delivered.get(lease_set.key, _NOTHING).messages
                if lag or given:
                    consumers[lease_set.key] = _ConsumerLoad(
                        engine, given, lag, leases.in_flight, leases.cursor(), leases.head
                    )
                looked_at += 1
                if looked_at % _ROWS_PER_STEP == 0:
                    yield

    def _busiest_queues(
        self, queues: Mapping[QueueKey, _QueueLoad]
    ) -> list[tuple[QueueKey, _QueueLoad]]:
        return heapq.nlargest(
            self._options.max_rows,
            queues.items(),
            key=lambda item: item[1].stored.size_bytes + item[1].delivered.size_bytes,
        )

    def _busiest_consumers(
        self, consumers: Mapping[ConsumerKey, _ConsumerLoad]
    ) -> list[tuple[ConsumerKey, _ConsumerLoad]]:
        return heapq.nlargest(
            self._options.max_rows, consumers.items(), key=lambda item: item[1].lag
        )

    def _fill_node(
        self,
        node: pb.NodeWindow,
        queues: Mapping[QueueKey, _QueueLoad],
        consumers: Mapping[ConsumerKey, _ConsumerLoad],
    ) -> None:
        node.messages_in = sum(load.stored.messages for load in queues.values())
        node.bytes_in = sum(load.stored.size_bytes for load in queues.values())
        node.messages_out = sum(load.delivered.messages for load in queues.values())
        node.bytes_out = sum(load.delivered.size_bytes for load in queues.values())
        node.lag_messages = sum(consumer.lag for consumer in consumers.values())
        node.leases = sum(consumer.leases for consumer in consumers.values())
        _fill_latency(node.appends, self._appends.take())
        _fill_latency(node.syncs, self._syncs.take())
        node.loop_lag_max_ms = self._loop_lag.take().maximum
        cpu_s, now_s = time.process_time(), self._clock.monotonic_s()
        node.cpu_cores = (cpu_s - self._cpu_s) / max(now_s - self._since_s, 1e-3)
        self._cpu_s, self._since_s = cpu_s, now_s
        # Linux counts in KiB.
        node.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        node.disk_free_bytes, node.disk_total_bytes = self._node.disk_bytes()
        node.log_bytes = self._node.log_bytes()[0]
        replicas = self._node.replicas().values()
        node.raft_groups = len(replicas)
        node.leaders = sum(replica.is_ready_leader() for replica in replicas)


def _fill_latency(latency: pb.LatencyWindow, taken: Quantiles) -> None:
    latency.count = taken.count
    latency.p50_ms, latency.p95_ms, latency.p99_ms = taken.p50, taken.p95, taken.p99


def _histogram(metrics: Metrics, name: str) -> Histogram | None:
    """Return a histogram that another part of the process declares; None: no part did."""
    try:
        return metrics.histogram(name)
    except KeyError:
        return None
