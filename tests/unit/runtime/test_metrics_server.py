"""The scrape port's answers (its socket is asyncio's)."""

from __future__ import annotations

import pytest

from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.metrics_server import MetricsServer

SPECS = (MetricSpec("strata_up", "gauge", "1", "Whether it runs."),)


@pytest.mark.parametrize(
    ("request_line", "unready", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", None, b"200 OK", b"\nstrata_up 1.0\n"),
        (b"GET /health HTTP/1.1", None, b"200 OK", b"\r\nok\n"),
        (b"GET /health?x=1 HTTP/1.1", "no leader", b"503 Service Unavailable", b"no leader"),
        (b"GET /else HTTP/1.1", None, b"404 Not Found", b"/metrics or /health"),
        (b"POST /metrics HTTP/1.1", None, b"405 Method Not Allowed", b"only GET"),
        (b"\x16\x03\x01", None, b"405 Method Not Allowed", b"only GET"),
    ],
)
async def test_answers(
    request_line: bytes, unready: str | None, status: bytes, body: bytes
) -> None:
    """Metrics and health are served by GET; everything else is refused with a status."""
    metrics = Metrics(SPECS)
    metrics.gauge("strata_up", lambda: 1)
    server = MetricsServer(metrics, unready=lambda: unready)
    answer = await server._answer(request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(content) in head
    assert body in answer
