"""Metrics: names on the scrape, counting, labels, limits."""

from __future__ import annotations

import pytest

from strata_runtime.metrics import Metrics, MetricSpec

SPECS = (
    MetricSpec("rocketmq_messages_in_total", "counter", "1", "Messages in.", ("topic", "kind")),
    MetricSpec("strata_sync_ms", "histogram", "ms", "Sync time.", ("node",), (1, 10)),
    MetricSpec("strata_log_bytes", "gauge", "bytes", "Log size.", ("node",)),
    MetricSpec("strata_up", "gauge", "1", "Whether it runs."),
)


def _lines(metrics: Metrics) -> list[str]:
    metrics.read_gauges()
    return [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]


def test_names_on_the_scrape_are_the_specs_names() -> None:
    """No unit, scope or suffix is added to a name or its labels."""
    metrics = Metrics(SPECS)
    metrics.counter("rocketmq_messages_in_total").add(2, {"topic": "a", "kind": "fifo"})
    metrics.histogram("strata_sync_ms").record(3, {"node": "1"})
    metrics.gauge("strata_log_bytes", lambda: [(7, {"node": "1"})])
    metrics.gauge("strata_up", lambda: 1)
    assert _lines(metrics) == [
        'rocketmq_messages_in_total{kind="fifo",topic="a"} 2.0',
        'strata_log_bytes{node="1"} 7.0',
        "strata_up 1.0",
        'strata_sync_ms_bucket{le="1",node="1"} 0.0',
        'strata_sync_ms_bucket{le="10",node="1"} 1.0',
        'strata_sync_ms_bucket{le="+Inf",node="1"} 1.0',
        'strata_sync_ms_count{node="1"} 1.0',
        'strata_sync_ms_sum{node="1"} 3.0',
    ]


def test_common_labels_are_on_every_series() -> None:
    """Labels of the process are added to counters, gauges and histograms."""
    metrics = Metrics(SPECS, common_labels={"cluster": "c"})
    metrics.counter("rocketmq_messages_in_total").add(1, {"topic": "a", "kind": "x"})
    metrics.histogram("strata_sync_ms").record(3, {"node": "1"})
    metrics.gauge("strata_up", lambda: 1)
    assert all('cluster="c"' in line for line in _lines(metrics))


def test_counter_is_shared_and_label_order_does_not_matter() -> None:
    """Asking again gives the same counter; one label set is one series in any order."""
    metrics = Metrics(SPECS)
    metrics.counter("rocketmq_messages_in_total").add(1, {"topic": "a", "kind": "x"})
    metrics.counter("rocketmq_messages_in_total").add(2, {"kind": "x", "topic": "a"})
    labels = {"topic": "a", "kind": "x"}
    assert metrics.counter("rocketmq_messages_in_total").value(labels) == 3
    assert _lines(metrics) == ['rocketmq_messages_in_total{kind="x",topic="a"} 3.0']


def test_gauges_of_one_name_add_up_and_close() -> None:
    """Two components may report one gauge; a closed one is not asked any more."""
    metrics = Metrics(SPECS)
    metrics.gauge("strata_up", lambda: 1)
    second = metrics.gauge("strata_up", lambda: 2)
    assert _lines(metrics) == ["strata_up 3.0"]
    second.close()
    second.close()
    assert _lines(metrics) == ["strata_up 1.0"]


def test_label_sets_are_limited() -> None:
    """Label sets above the limit are counted together, none is lost."""
    metrics = Metrics(SPECS, max_label_sets=3)
    counter = metrics.counter("rocketmq_messages_in_total")
    for number in range(10):
        counter.add(1, {"topic": str(number), "kind": "x"})
    assert counter.value({"otel_metric_overflow": "true"}) == 7
    assert len(_lines(metrics)) == 4


def test_bound_instruments_count_like_others() -> None:
    """An instrument bound to a label set counts into the same numbers, also above the limit."""
    metrics = Metrics(SPECS, max_label_sets=2)
    counter = metrics.counter("rocketmq_messages_in_total")
    for number in range(3):
        labels = {"topic": str(number), "kind": "x"}
        bound = counter.bound(labels)
        bound.add(2)
        bound.add()
        counter.add(1, labels)
    assert counter.value({"kind": "x", "topic": "1"}) == 4
    assert counter.value({"otel_metric_overflow": "true"}) == 4
    latency, node = metrics.histogram("strata_sync_ms"), {"node": "a"}
    latency.bound(node).record(3)
    latency.record(3, node)
    assert latency.bucket_counts(node) == [0, 2, 0]
    with pytest.raises(ValueError, match="has the labels"):
        counter.bound({"topic": "a"})
    disabled = Metrics.disabled()
    disabled.counter("any_total").bound({}).add()
    disabled.histogram("any").bound().record(1)


def test_wrong_labels_and_names_are_refused() -> None:
    """A recording with other labels, an unknown name and a misnamed counter are errors."""
    metrics = Metrics(SPECS)
    with pytest.raises(ValueError, match="has the labels"):
        metrics.counter("rocketmq_messages_in_total").add(1, {"topic": "a"})
    with pytest.raises(KeyError, match="strata_nothing"):
        metrics.counter("strata_nothing")
    with pytest.raises(KeyError, match="no gauge"):
        metrics.gauge("rocketmq_messages_in_total", lambda: 1)
    with pytest.raises(ValueError, match="ends with _total"):
        MetricSpec("strata_sent", "counter", "1", "Sent.")


def test_declaring_twice() -> None:
    """The same spec may be declared twice, another one under its name may not."""
    metrics = Metrics(SPECS)
    metrics.declare(SPECS)
    with pytest.raises(ValueError, match="strata_up"):
        metrics.declare([MetricSpec("strata_up", "gauge", "1", "Something else.")])


def test_disabled() -> None:
    """Disabled metrics accept everything and show nothing."""
    metrics = Metrics.disabled()
    metrics.counter("whatever_total").add(1, {"a": "b"})
    metrics.histogram("whatever").record(1)
    metrics.gauge("whatever", lambda: 1).close()
    metrics.read_gauges()
    assert metrics.render() == b""
