"""A node that writes metric windows and a tier quickly, and a topic with messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from strata_placement.source.sending import requests_of
from tests.e2e.leftovers import free_disk
from tests.integration.cli.conftest import Node


@pytest.fixture(scope="package")
def tier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of the node's tier."""
    return f"posix://{tmp_path_factory.mktemp('spark-tier')}"


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory, tier: str) -> Iterator[Node]:
    """A standalone node."""
    settings = {
        "STRATA_OBSERVABILITY_WINDOWS": "true",
        "STRATA_OBSERVABILITY_WINDOW_MS": "500",
        "STRATA_STORAGE_WINDOW_MS": "500",
        "STRATA_TIER_URL": tier,
        "STRATA_TIER_FLUSH_AGE_MS": "500",
        "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000",
    }
    started = Node(tmp_path_factory.mktemp("spark-node") / "data", environment=settings)
    yield started
    code, _, err = started.stop()
    assert code == 0, err
    free_disk(started.data_dir)


def send(node: Node, topic: str, messages: int, first: int = 0) -> None:
    """Send numbered messages, every other one with the tag `even`."""
    options = SourceOptions((node.endpoint,), topic, batch_messages=500)
    rows = (
        {
            "body": f"body {number}",
            "tag": "odd" if number % 2 else "even",
            "keys": [f"key-{number}"],
            "properties": {"number": str(number)},
        }
        for number in range(first, first + messages)
    )
    with BrokerClient(options) as client:
        for request in requests_of(rows, options, f"test-{topic}-{first}"):
            client.send(request)
