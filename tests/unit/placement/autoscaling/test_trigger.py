"""A ScaledObject's metadata: what they may say, and what a mistake is told."""

from __future__ import annotations

import pytest

from strata_placement.autoscaling.trigger import Trigger, TriggerError, trigger_of


def test_every_metric_has_its_keys() -> None:
    """Keys of KEDA's own are passed over; numbers may have fractions."""
    lag = {"scalerAddress": "a:1", "metric": "lag", "target": "100", "group": "workers"}
    assert trigger_of(lag) == Trigger("lag", 100.0, group="workers")
    rate = {"metric": "messages_per_second", "target": "2.5", "topic": "a, b,a", "namespace": "n"}
    assert trigger_of(rate) == Trigger("messages_per_second", 2.5, namespace="n", topics=("a", "b"))
    forecast = {"metric": "forecast", "target": "1", "of": "bytes_per_second", "horizon": "30m"}
    found = trigger_of(forecast)
    assert (found.rate, found.horizon_ms) == ("bytes_per_second", 1_800_000)
    assert trigger_of({"metric": "forecast", "target": "1"}).horizon_ms == 900_000


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "metric: '' is not one of lag, messages_per_second"),
        ({"metric": "cpu", "target": "1"}, "metric: 'cpu' is not one of"),
        ({"metric": "lag", "group": "g"}, "target: '' is not a number above 0"),
        ({"metric": "lag", "group": "g", "target": "0"}, "target: '0' is not a number above 0"),
        ({"metric": "lag", "group": "g", "target": "nan"}, "target: 'nan' is not"),
        ({"metric": "lag", "target": "1"}, "group: a lag needs a consumer group"),
        ({"metric": "forecast", "target": "1", "group": "g"}, "group: a lag needs"),
        ({"metric": "lag", "group": "g", "target": "1", "traget": "2"}, "'traget' is unknown"),
        ({"metric": "lag", "group": "g", "target": "1", "horizon": "1m"}, "horizon: only a fore"),
        ({"metric": "forecast", "target": "1", "horizon": "2d"}, "horizon: '2d' is not a time"),
        ({"metric": "forecast", "target": "1", "horizon": "99h"}, "at most 24h"),
        ({"metric": "bytes_per_second", "target": "1", "topic": "t"}, "topic: bytes_per_second"),
        (
            {"metric": "forecast", "target": "1", "minReplicas": "3", "maxReplicas": "2"},
            "minReplicas: 3 is above maxReplicas, 2",
        ),
        (
            {"metric": "lag", "group": "g", "target": "10", "maxReplicas": "5", "activation": "50"},
            "activation: 50 is not below what maxReplicas bear, 50",
        ),
        ({"metric": "forecast", "target": "1", "maxReplicas": "-1"}, "maxReplicas: '-1' is not"),
    ],
)
def test_a_mistake_is_told_with_its_key(metadata: dict[str, str], reason: str) -> None:
    """The text names the key, the value and what it may be."""
    with pytest.raises(TriggerError) as caught:
        trigger_of(metadata)
    assert reason in str(caught.value)


def test_bounds_hold_the_number_of_replicas() -> None:
    """An active target never has fewer or more; one that is not active may have none."""
    trigger = Trigger("lag", 10.0, group="g", activation=5.0, min_replicas=2, max_replicas=4)
    assert [trigger.bounded(value) for value in (0.0, 5.0, 6.0, 35.0, 1e9)] == [
        *(0.0, 5.0, 20.0, 35.0, 40.0)
    ]
    assert [trigger.is_active(value) for value in (5.0, 5.1)] == [False, True]
