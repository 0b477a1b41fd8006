"""A broker stays among the nameserver's nodes."""

from __future__ import annotations

import pytest

from strata_broker.app import BrokerApp
from strata_broker.config import BrokerConfig
from tests.unit.broker.conftest import BASE_CONFIG
from tests.unit.broker.fake_meta import FakeMeta
from tests.unit.broker.fake_storage import until


@pytest.fixture
def config() -> BrokerConfig:
    """Heartbeats without a pause."""
    metadata = BASE_CONFIG["metadata"] | {"heartbeat_period_ms": 1}
    return BrokerConfig.model_validate(BASE_CONFIG | {"metadata": metadata})


async def test_a_broker_heartbeats(app: BrokerApp, meta: FakeMeta) -> None:
    """Heartbeats follow each other, and none of them registers again."""
    await until(lambda: meta.calls.count("Heartbeat") >= 3)
    assert meta.calls.count("RegisterNode") == 1


async def test_a_nameserver_that_forgot_is_told_again(app: BrokerApp, meta: FakeMeta) -> None:
    """After NOT_FOUND the broker registers with the same row."""
    (known,) = meta.heard
    meta.heard.clear()
    await until(lambda: meta.heard)
    assert meta.heard == {known}
    rows = [change.node for change in meta.rows if change.node.node_id == "broker-a"]
    assert len(rows) == 2
    assert rows[0] == rows[1]
