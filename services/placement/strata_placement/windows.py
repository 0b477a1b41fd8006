"""From metric windows to columns: loads per queue, and how nodes do at which load.

Input are the batches of `strata_runtime.windows`, as they are read from `__strata_metrics`. A row
that is absent means zeros (an idle queue writes none); a batch that came twice counts once. Nodes
write times by their own clocks: whoever reads for the present looks at them first (`timely`), and
what has a time or a length that cannot be counts nowhere.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_placement.series import LoadSeries, PlacementError
from strata_placement.timely import is_possible
from strata_runtime.failslow import NodeWindow
from strata_runtime.windows import WindowBatch, WindowKind

MAX_WINDOWS = 100_000

_COUNTED = ("raft_group", "messages_in", "bytes_in", "bytes_out", "min_offset", "end_offset")


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue by names; as text `namespace/topic/queue`, the namespace may be empty."""

    namespace: str
    topic: str
    queue: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> QueueName:
        """Return the queue that a text names.

        Raises:
            PlacementError: the text names none.
        """
        namespace, _, rest = text.partition("/")
        topic, _, queue = rest.rpartition("/")
        if not topic or not queue.isdecimal():
            raise PlacementError(f"{text!r} names no queue; write namespace/topic/queue")
        return cls(namespace, topic, int(queue))


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Traffic of the queues of one raft group, in and out.

    Attributes:
        bytes_in: stored, over all windows.
        bytes_out: handed out, likewise.
        stored_bytes: what is kept, estimated: messages kept times their mean size.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    stored_bytes: int = 0

    @property
    def read_share(self) -> float:
        """Share of the traffic that is reading; 0 without traffic."""
        traffic = self.bytes_in + self.bytes_out
        return self.bytes_out / traffic if traffic else 0.0


@dataclass(frozen=True, slots=True)
class BrokerTraffic:
    """Traffic of all brokers together in one window."""

    start_ms: int
    bytes_per_s: float
    cpu_cores: float


def is_of_storage(batch: WindowBatch) -> bool:
    """Whether a storage node measured a batch; brokers write windows of themselves only."""
    if batch.kind is not WindowKind.NODE:
        return True
    return "storage" in batch.columns["node_kind"]


def newest_end_ms(batches: Iterable[WindowBatch]) -> dict[str, int]:
    """Return by storage node when its newest window ended, in wall time."""
    ends: dict[str, int] = {}
    for batch in filter(is_of_storage, batches):
        end_ms = batch.start_ms + batch.length_ms
        ends[batch.node_id] = max(ends.get(batch.node_id, 0), end_ms)
    return ends


def raft_group_traffic(batches: Iterable[WindowBatch]) -> dict[int, GroupTraffic]:
    """Return by raft group what its queues took in and gave out over all windows."""
    # A batch that came twice counts once.
    rows: dict[tuple[int, str, str], dict[str, int]] = {}
    for batch in _of_kind(WindowKind.QUEUE, batches):
        numbers: Mapping[str, Sequence[Any]] = batch.columns
        for at, name in enumerate(_names(batch)):
            row = {column: numbers[column][at] for column in _COUNTED}
            rows[batch.start_ms, batch.node_id, name] = row
    came, went = Counter[int](), Counter[int]()
    kept: dict[tuple[int, str], int] = {}
    sizes: dict[str, int] = {}
    for (_, _, name), row in sorted(rows.items(), key=lambda item: item[0]):
        raft_group = row["raft_group"]
        came[raft_group] += row["bytes_in"]
        went[raft_group] += row["bytes_out"]
        if row["messages_in"]:
            sizes[name] = row["bytes_in"] // row["messages_in"]
        # The newest window tells what is kept now.
        kept[raft_group, name] = row["end_offset"] - row["min_offset"]
    stored = Counter[int]()
    for (raft_group, name), messages in kept.items():
        stored[raft_group] += messages * sizes.get(name, 0)
    return {
        raft_group: GroupTraffic(came[raft_group], went[raft_group], stored[raft_group])
        for raft_group in came
    }


def broker_traffic(batches: Iterable[WindowBatch]) -> list[BrokerTraffic]:
    """Return what all brokers together did, by time."""
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for batch in _of_kind(WindowKind.NODE, batches):
        for row in batch.rows():
            if row["node_kind"] == "broker":
                load = (float(row["bytes_in"]) + float(row["bytes_out"])) * 1_000 / batch.length_ms
                found[batch.start_ms, batch.node_id] = load, float(row["cpu_cores"])
    sums: dict[int, tuple[float, float]] = {}
    for (start_ms, _), (load, cores) in found.items():
        all_load, all_cores = sums.get(start_ms, (0.0, 0.0))
        sums[start_ms] = all_load + load, all_cores + cores
    return [BrokerTraffic(start_ms, *total) for start_ms, total in sorted(sums.items())]


def queue_series(batches: Iterable[WindowBatch]) -> LoadSeries:
    """Return the bytes per second, stored and handed out, of every queue that was seen.

    Windows of storage nodes themselves tell how long nothing happened after the last one of a
    queue: an hour in which all queues are idle is an hour of zeros.

    Raises:
        PlacementError: there is no window of a queue, or the time they span is too long.
    """
    cells: dict[tuple[str, int, str], float] = {}
    step_ms = newest_ms = 0
    for batch in filter(is_possible, batches):
        if is_of_storage(batch):
            newest_ms = max(newest_ms, batch.start_ms)
        if batch.kind is not WindowKind.QUEUE:
            continue
        step_ms = step_ms or batch.length_ms
        for name, load in zip(_names(batch), _loads(batch), strict=True):
            # The node is part of the key: a queue that moved has two leaders in one window.
            cells[name, batch.start_ms, batch.node_id] = load
    if not cells:
        raise PlacementError("there is no metric window of any queue")
    # Nodes publish a window one after another: the newest one may still lack queues.
    return _filled(cells, step_ms, newest_ms - step_ms)


def node_windows(batches: Iterable[WindowBatch]) -> list[NodeWindow]:
    """Return what storage nodes measured of themselves, by time and node."""
    found: dict[tuple[int, str], NodeWindow] = {}
    for batch in _of_kind(WindowKind.NODE, batches):
        for row in batch.rows():
            if row["node_kind"] != "storage":
                continue
            load = (float(row["bytes_in"]) + float(row["bytes_out"])) * 1_000 / batch.length_ms
            found[batch.start_ms, batch.node_id] = NodeWindow(
                batch.node_id,
                batch.start_ms,
                load,
                float(row["append_p95_ms"]),
                float(row["sync_p95_ms"]),
            )
    return [found[key] for key in sorted(found)]


def _of_kind(kind: WindowKind, batches: Iterable[WindowBatch]) -> Iterator[WindowBatch]:
    return (batch for batch in batches if batch.kind is kind and is_possible(batch))


def _names(batch: WindowBatch) -> Iterator[str]:
    columns: Mapping[str, Sequence[Any]] = batch.columns
    places = zip(columns["namespace"], columns["topic"], columns["queue"], strict=True)
    return (str(QueueName(namespace, topic, queue)) for namespace, topic, queue in places)


def _loads(batch: WindowBatch) -> Iterator[float]:
    columns: Mapping[str, Sequence[Any]] = batch.columns
    traffic = zip(columns["bytes_in"], columns["bytes_out"], strict=True)
    return ((came + went) * 1_000 / batch.length_ms for came, went in traffic)


def _filled(
    cells: dict[tuple[str, int, str], float], step_ms: int, least_last_ms: int
) -> LoadSeries:
    times = [start for _, start, _ in cells]
    first = min(times)
    count = (max(max(times), least_last_ms) - first) // step_ms + 1
    if count > MAX_WINDOWS:
        raise PlacementError(f"{count} windows are more than {MAX_WINDOWS}; read a shorter time")
    columns: dict[str, array[float]] = {}
    for (name, start, _), load in sorted(cells.items()):
        column = columns.setdefault(name, array("d", bytes(8 * count)))
        column[(start - first) // step_ms] += load
    return LoadSeries(first, step_ms, tuple(columns), tuple(columns.values()))
