"""A storage node over every kind of object store: what left the log comes back from there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    tiered_node,
    upload,
)
from tests.parts.stores import Scheme, UrlOf


@pytest.fixture
def tier(request: pytest.FixtureRequest, url_of: UrlOf, monkeypatch: pytest.MonkeyPatch) -> Tier:
    """A tier in a new place of the store that the test is given."""
    scheme: Scheme = request.param
    place = url_of(scheme)
    if place.credentials is not None:
        # As an operator gives them: by the usual chain.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.credentials.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.credentials.secret_key)
    return Tier(url=place.url)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("tier", ["posix", "s3", "gs", "hdfs"], indirect=True)
async def test_a_backlog_comes_back(tier: Tier, tmp_path: Path) -> None:
    """Every message, byte for byte, in order."""
    rng = random.Random(21)
    async with tiered_node(tmp_path / "node", tier) as node:
        expected = await fill(node, rng, 26)
        await upload(node)
        await empty_log(node)
        for queue, messages in expected.items():
            assert await fetch_all(node, queue) == list(enumerate(messages))
        popped = await node.pop(queue=1, max_messages=3)
        assert [message.message for message in popped.messages] == expected[1][:3]
