"""A broker under test, and the cluster and the edge that are its world."""

from __future__ import annotations

from strata_testing.broker.broker import (
    BROKER_A,
    BrokerUnderTest,
    broker_config,
    broker_under_test,
    network_of,
)

__all__ = [
    "BROKER_A",
    "BrokerUnderTest",
    "broker_config",
    "broker_under_test",
    "network_of",
]
