"""Limits: bounded, visible."""

from __future__ import annotations

import pytest

from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


def test_take_and_give_back() -> None:
    """Never more than the maximum is held; a refusal takes nothing and is counted."""
    metrics = Metrics()
    limit = Limit("append", 10, "bytes", metrics=metrics)
    assert limit.try_take(7)
    assert not limit.try_take(4)
    assert limit.try_take(3)
    metrics.read_gauges()
    scrape = metrics.render().decode()
    assert 'strata_limit_used{limit="append",of="bytes"} 10.0' in scrape
    assert 'strata_limit_maximum{limit="append",of="bytes"} 10.0' in scrape
    assert 'strata_limit_refused_total{limit="append",of="bytes"} 1.0' in scrape
    limit.give_back(10)
    assert limit.used == 0
    limit.close()
    metrics.read_gauges()
    assert "strata_limit_used{" not in metrics.render().decode()


def test_giving_back_too_much_is_a_mistake() -> None:
    """An amount that was not taken cannot be given back."""
    limit = Limit("append", 10, "bytes", metrics=Metrics.disabled())
    with pytest.raises(AssertionError, match="append"):
        limit.give_back(1)
    with pytest.raises(ValueError, match="positive"):
        Limit("none", 0, "bytes", metrics=Metrics.disabled())
