"""The scrape port's answers (its socket is asyncio's)."""

from __future__ import annotations

import pytest

from strata_runtime.health import Health, Problem, Severity
from strata_runtime.metrics import Metrics, MetricSpec
from strata_runtime.metrics_server import MetricsServer

SPECS = (MetricSpec("strata_up", "gauge", "1", "Whether it runs."),)


LEADERLESS = Problem("raft_group", "3", "LEADERLESS", Severity.DOWN, "1 of 3 replicas")
GOOD = Health()
BEHIND = Health(is_caught_up=False, problems=(LEADERLESS,))
BAD = Health(serves=False, problems=(LEADERLESS,))


@pytest.mark.parametrize(
    ("request_line", "health", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", GOOD, b"200 OK", b"\nstrata_up 1.0\n"),
        (b"GET /live HTTP/1.1", BAD, b"200 OK", b"\r\nok\n"),
        (b"GET /health HTTP/1.1", GOOD, b"200 OK", b"\r\nok\n"),
        (b"GET /health HTTP/1.1", BEHIND, b"200 OK", b"ok\nraft group 3 LEADERLESS: 1 of 3"),
        (b"GET /health?x=1 HTTP/1.1", BAD, b"503 Service Unavailable", b"raft group 3 LEADERLESS"),
        (b"GET /ready HTTP/1.1", GOOD, b"200 OK", b'"ready": true, "serves": true'),
        (b"GET /ready HTTP/1.1", BEHIND, b"503 Service Unavailable", b'"caught_up": false'),
        (b"GET /ready HTTP/1.1", BAD, b"503 Service Unavailable", b'"state": "LEADERLESS"'),
        (b"GET /else HTTP/1.1", GOOD, b"404 Not Found", b"/metrics, /live"),
        (b"POST /metrics HTTP/1.1", GOOD, b"405 Method Not Allowed", b"only GET"),
        (b"\x16\x03\x01", GOOD, b"405 Method Not Allowed", b"only GET"),
    ],
)
async def test_answers(request_line: bytes, health: Health, status: bytes, body: bytes) -> None:
    """Metrics and health are served by GET; everything else is refused with a status."""
    metrics = Metrics(SPECS)
    metrics.gauge("strata_up", lambda: 1)
    server = MetricsServer(metrics, health=lambda: health)
    answer = await server._answer(request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(content) in head
    assert body in answer


async def test_pages_of_other_processes_are_shown_with_its_own() -> None:
    """A supervisor shows the series of the processes that it has started."""
    metrics = Metrics(SPECS, common_labels={"node_id": "own"})
    metrics.gauge("strata_up", lambda: 1)
    metrics.read_gauges()
    other = metrics.render().replace(b'"own"} 1.0', b'"other"} 0.0')

    async def pages() -> list[bytes]:
        return [other]

    answer = await MetricsServer(metrics, others=pages)._answer(b"GET /metrics HTTP/1.1\r\n\r\n")
    body = answer.partition(b"\r\n\r\n")[2]
    assert b'strata_up{node_id="own"} 1.0\nstrata_up{node_id="other"} 0.0\n' in body
