"""Live pages: how many there may be, and when one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from strata_cli.processes.console_config import ConsoleSection
from strata_console.errors import ConsoleError
from strata_console.live import LiveStreams
from strata_console.metrics import METRICS
from strata_runtime.metrics import Metrics

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}, "headers": []}


async def run(work: Callable[[], Any]) -> Any:
    """Run work at once."""
    return work()


async def test_pages_that_open_at_once_are_limited_as_others() -> None:
    """A page counts from its request on, and until it has ended, also one that nobody read."""
    stopping, metrics = asyncio.Event(), Metrics(METRICS)
    streams = LiveStreams(
        ConsoleSection(max_streams=2), run, lambda _: True, metrics=metrics, stopping=stopping
    )
    opened = [streams.read(Request(SCOPE), lambda: {"a": 1}) for _ in range(2)]
    with pytest.raises(ConsoleError, match="2 live pages are open"):
        streams.read(Request(SCOPE), lambda: {"a": 1})
    metrics.read_gauges()
    assert b"strata_console_streams 2.0" in metrics.render()

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def still_there() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await opened[0](SCOPE, gone, send)
    stopping.set()
    await opened[1](SCOPE, still_there, send)
    assert any(b'data: {"a": 1}' in message.get("body", b"") for message in sent)
    metrics.read_gauges()
    assert b"strata_console_streams 0.0" in metrics.render()
