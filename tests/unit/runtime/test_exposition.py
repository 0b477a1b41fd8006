"""Pages of metrics of several processes, joined."""

from __future__ import annotations

from strata_runtime.exposition import joined
from strata_runtime.metrics import Metrics, MetricSpec

SPECS = (
    MetricSpec("strata_a_total", "counter", "1", "A."),
    MetricSpec("strata_b_ms", "histogram", "ms", "B."),
)


def page(node_id: str, specs: tuple[MetricSpec, ...] = SPECS) -> bytes:
    metrics = Metrics(common_labels={"node_id": node_id})
    metrics.declare(specs)
    metrics.counter("strata_a_total").add(2)
    if specs == SPECS:
        metrics.histogram("strata_b_ms").record(3)
    return metrics.render()


def test_each_metric_is_described_once() -> None:
    """The series of all processes follow their description, which the text format requires."""
    lines = joined([page("x"), page("y")]).decode().splitlines()

    assert [line for line in lines if "strata_a_total" in line] == [
        "# HELP strata_a_total A.",
        "# TYPE strata_a_total counter",
        'strata_a_total{node_id="x"} 2.0',
        'strata_a_total{node_id="y"} 2.0',
    ]
    assert lines.index('strata_a_total{node_id="y"} 2.0') < lines.index(
        "# TYPE strata_b_ms histogram"
    )
    assert sum(line.startswith("strata_b_ms_count") for line in lines) == 2


def test_a_metric_of_one_process_stays() -> None:
    """Pages need not have the same metrics, in whatever order they come."""
    alone = joined([page("x", SPECS[:1]), page("y")])

    assert alone.count(b"# TYPE strata_b_ms histogram") == 1
    assert sorted(alone.splitlines()) == sorted(
        joined([page("y"), page("x", SPECS[:1])]).splitlines()
    )
    assert joined([page("x")]) == page("x")
    assert joined([b"", b""]) == b""
