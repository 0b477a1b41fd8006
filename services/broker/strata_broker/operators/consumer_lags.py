"""Lag of consumer groups under RocketMQ's metric names, as of the last windows of storage nodes.

A window has up to 10,000 rows, and a scrape reads five gauges on the event loop. So rows are added
up once, when a window arrives and in pieces, and gauges return finished points. Only as many points
are kept as a metric shows: those whose topic and consumer group came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from strata_runtime.metrics import Labels, Metrics
from strata_runtime.windows import Value

Row = Mapping[str, Value]
Points = Sequence[tuple[float, Labels]]

# Rows or sums that one turn of the event loop takes in.
_ROWS_PER_STEP = 500


class _Consumed(NamedTuple):
    """Labels of a consumer group's lag on a topic; both are of one namespace."""

    namespace: str
    topic: str
    consumer_group: str


class _Lag(NamedTuple):
    """Numbers of messages are sums of all queues, ages in ms are those of the oldest message."""

    lag_messages: int
    leases: int
    lag_ms: int
    queueing_ms: int

    def plus(self, other: _Lag) -> _Lag:
        """Return the lag of other queues together with these."""
        return _Lag(
            self.lag_messages + other.lag_messages,
            self.leases + other.leases,
            max(self.lag_ms, other.lag_ms),
            max(self.queueing_ms, other.queueing_ms),
        )


_Lags = dict[_Consumed, _Lag]
_NONE = _Lag(0, 0, 0, 0)
_GAUGES: Mapping[str, Callable[[_Lag], int]] = {
    "rocketmq_consumer_lag_messages": lambda lag: lag.lag_messages,
    "rocketmq_consumer_inflight_messages": lambda lag: lag.leases,
    "rocketmq_consumer_ready_messages": lambda lag: lag.lag_messages - lag.leases,
    "rocketmq_consumer_lag_latency": lambda lag: lag.lag_ms,
    "rocketmq_consumer_queueing_latency": lambda lag: lag.queueing_ms,
}


class ConsumerLags:
    """See the module docstring. Used on the event loop only; `show` by one task at a time."""

    def __init__(self, metrics: Metrics) -> None:
        self._most = metrics.max_label_sets
        # node -> what its last window says
        self._nodes: dict[str, _Lags] = {}
        self._is_shown = True
        self._points: dict[str, Points] = {}
        for name in _GAUGES:
            metrics.gauge(name, partial(self._points_of, name))

    async def take(self, node_id: str, rows: Iterable[Row]) -> None:
        """Take in the rows of a storage node's window, instead of those of the one before."""
        lags: _Lags = {}
        for number, row in enumerate(rows, 1):
            consumed = _Consumed(
                str(row["namespace"]), str(row["topic"]), str(row["consumer_group"])
            )
            lag = _Lag(
                int(row["lag_messages"]),
                int(row["leases"]),
                int(row["lag_ms"]),
                int(row["queueing_ms"]),
            )
            lags[consumed] = lags.get(consumed, _NONE).plus(lag)
            if number % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        self._nodes[node_id] = lags
        self._is_shown = False

    def forget(self, node_id: str) -> None:
        """Take in that the lag at a storage node is not known any more."""
        if self._nodes.pop(node_id, None) is not None:
            self._is_shown = False

    def keep_only(self, node_ids: Collection[str]) -> None:
        """Forget all other storage nodes."""
        for node_id in self._nodes.keys() - set(node_ids):
            self.forget(node_id)

    async def show(self) -> None:
        """Let the gauges show what was taken in; until it is done they show what they did."""
        if self._is_shown:
            return
        self._is_shown = True
        total: _Lags = {}
        number = 0
        for lags in list(self._nodes.values()):
            for consumed, lag in lags.items():
                before = total.get(consumed)
                if before is not None:
                    total[consumed] = before.plus(lag)
                elif len(total) < self._most:
                    total[consumed] = lag
                number += 1
                if number % _ROWS_PER_STEP == 0:
                    await asyncio.sleep(0)
        # The gauges share the labels.
        labelled = [(consumed._asdict(), lag) for consumed, lag in total.items()]
        self._points = {
            name: [(number_of(lag), labels) for labels, lag in labelled]
            for name, number_of in _GAUGES.items()
        }

    def _points_of(self, name: str) -> Points:
        return self._points.get(name, ())
