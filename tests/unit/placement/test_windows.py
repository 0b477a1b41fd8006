"""Metric windows become columns: absent rows are zeros, repeats count once, moved queues add up."""

from __future__ import annotations

import pytest

from strata_placement.documents import action_of, plan_of, plan_row
from strata_placement.plan import (
    Action,
    AddReadReplica,
    Balance,
    MoveQueue,
    MoveReplica,
    Plan,
    RemoveReadReplica,
    ScaleBrokers,
    Step,
    TransferLeader,
    describe,
)
from strata_placement.series import PlacementError
from strata_placement.windows import (
    QueueName,
    broker_traffic,
    newest_end_ms,
    node_windows,
    queue_series,
    raft_group_traffic,
)
from strata_runtime.windows import (
    WINDOW_MS,
    Value,
    WindowBatch,
    WindowKind,
    batches_of,
    decode,
    encode,
)

BALANCES = (Balance(1.5, 0.9), Balance(1.1, 0.6))
ACTIONS: tuple[Action, ...] = (
    TransferLeader(1, "a", "b"),
    MoveReplica(2, "a", "c"),
    MoveQueue("shop/orders/3", 1, 2),
    AddReadReplica(3, "a"),
    RemoveReadReplica(3, "a"),
    ScaleBrokers(2, 3),
)
PLAN = Plan(
    7,
    "forecast",
    "ema on 3 windows",
    60_000,
    *BALANCES,
    tuple(Step(action, f"because {at}", at, *BALANCES) for at, action in enumerate(ACTIONS)),
    ("a note",),
)


def queue_batch(node_id: str, window: int, **bytes_in: int) -> WindowBatch:
    rows: list[dict[str, Value]] = [
        {"namespace": "", "topic": topic, "queue": 1, "bytes_in": load, "bytes_out": load}
        for topic, load in bytes_in.items()
    ]
    [batch] = batches_of(WindowKind.QUEUE, node_id, window * WINDOW_MS, WINDOW_MS, rows)
    return decode(encode(batch))


def test_queue_loads_are_columns_without_holes() -> None:
    """Bytes in and out per second; a batch that came twice is one; two leaders of a move add up."""
    batches = [
        queue_batch("a", 5, orders=1_000),
        queue_batch("a", 5, orders=1_000),
        queue_batch("a", 7, orders=500, bills=10),
        queue_batch("b", 7, orders=250),
    ]
    series = queue_series(batches)
    assert (series.start_ms, series.step_ms, series.windows) == (50_000, 10_000, 3)
    loads = dict(zip(series.names, map(list, series.columns), strict=True))
    assert loads == {"/orders/1": [200.0, 0.0, 150.0], "/bills/1": [0.0, 0.0, 2.0]}
    with pytest.raises(PlacementError, match="no metric window"):
        queue_series([])


def test_a_time_span_that_is_too_long_is_refused() -> None:
    """A stray window of long ago does not fill memory with zeros."""
    with pytest.raises(PlacementError, match="read a shorter time"):
        queue_series([queue_batch("a", 1, t=1), queue_batch("a", 200_000, t=1)])


def node_batch(node_id: str, kind: str, window: int) -> WindowBatch:
    rows: list[dict[str, Value]] = [{"node_kind": kind, "bytes_in": 5_000}]
    [batch] = batches_of(WindowKind.NODE, node_id, window * WINDOW_MS, WINDOW_MS, rows)
    return batch


def test_an_hour_in_which_all_queues_are_idle_is_an_hour_of_zeros() -> None:
    """Storage nodes write windows of themselves all the time; the last load is not that of now.

    The newest window may still lack queues, and brokers tell nothing of queues.
    """
    batches = [queue_batch("a", 5, t=1_000)]
    assert queue_series([*batches, node_batch("b", "broker", 9)]).windows == 1
    series = queue_series([*batches, node_batch("a", "storage", 9)])
    assert list(series.columns[0]) == [200.0, 0.0, 0.0, 0.0]
    assert newest_end_ms(
        [*batches, node_batch("b", "broker", 9), node_batch("c", "storage", 9)]
    ) == {
        "a": 6 * WINDOW_MS,
        "c": 10 * WINDOW_MS,
    }


@pytest.mark.parametrize(("start_ms", "length_ms"), [(0, 0), (2**63, WINDOW_MS)])
def test_windows_that_cannot_be_count_nowhere(start_ms: int, length_ms: int) -> None:
    """Neither as loads nor as divisors."""
    rows: list[dict[str, Value]] = [{"topic": "t", "bytes_in": 1}]
    [queues] = batches_of(WindowKind.QUEUE, "a", start_ms, length_ms, rows)
    for kind in ("broker", "storage"):
        rows = [{"node_kind": kind, "bytes_in": 1}]
        [nodes] = batches_of(WindowKind.NODE, "a", start_ms, length_ms, rows)
        assert not node_windows([nodes])
        assert not broker_traffic([nodes])
    assert not raft_group_traffic([queues])
    assert queue_series([queues, queue_batch("a", 5, t=1)]).names == ("/t/1",)
    with pytest.raises(PlacementError, match="no metric window"):
        queue_series([queues])


def test_nodes_are_read_with_their_latencies() -> None:
    """Storage nodes only, by time."""
    rows: list[dict[str, Value]] = [
        {"node_kind": "storage", "bytes_in": 5_000, "append_p95_ms": 4.0, "sync_p95_ms": 2.0},
        {"node_kind": "broker", "bytes_in": 9},
    ]
    [batch] = batches_of(WindowKind.NODE, "a", 0, WINDOW_MS, rows)
    [window] = node_windows([batch, queue_batch("a", 5, orders=1)])
    assert (window.node_id, window.load_bytes_per_s) == ("a", 500.0)
    assert (window.append_ms, window.sync_ms) == (4.0, 2.0)


@pytest.mark.parametrize("text", ["orders", "a/b/c", "/orders/-1", "//3", "x"])
def test_what_names_no_queue_is_refused(text: str) -> None:
    """A name has a topic and a number; the line repeats what was given."""
    with pytest.raises(PlacementError, match="names no queue"):
        QueueName.parse(text)


def test_a_plan_survives_its_document_and_its_row() -> None:
    """JSON and the nameserver's row hold the same plan."""
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert plan_of(plan_row(PLAN)) == PLAN
    assert [action_of(step) for step in plan_row(PLAN).steps] == list(ACTIONS)
    assert PLAN.to_json()["cost_bytes"] == PLAN.cost_bytes == 15
    for broken in ({}, {"format": 1}, PLAN.to_json() | {"before": {"x": 1}}):
        with pytest.raises(PlacementError, match="plan"):
            Plan.from_json(broken)


def test_actions_are_described_in_a_few_words() -> None:
    """Each names what goes where."""
    assert [describe(action) for action in ACTIONS] == [
        "leader of raft group 1: a -> b",
        "replica of raft group 2: a -> c",
        "queue shop/orders/3: raft group 1 -> 2",
        "read replica of raft group 3: added on a",
        "read replica of raft group 3: removed from a",
        "brokers: 2 -> 3",
    ]
