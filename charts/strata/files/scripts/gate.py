"""Health gate before a pod stops: waits until the cluster can do without it.

Kubernetes runs this before it sends SIGTERM, so the process still serves. The brokers see the
whole cluster; one of them is asked. After the time limit, or when no broker answers, the pod stops
anyway: a pod that cannot be stopped heals nothing.
"""

from __future__ import annotations

import http.client
import sys
import time

PAUSE_S = 1.0
TRIES_WITHOUT_ANSWER = 3


def main() -> None:
    """Wait; the arguments are host:port of the brokers' metrics and the time limit in seconds."""
    endpoint, seconds = sys.argv[1], float(sys.argv[2])
    deadline_s = time.monotonic() + seconds
    silent = 0
    while time.monotonic() < deadline_s:
        problems = problems_at(endpoint)
        silent = silent + 1 if problems is None else 0
        if problems == [] or silent >= TRIES_WITHOUT_ANSWER:
            return
        time.sleep(PAUSE_S)


def problems_at(endpoint: str) -> list[str] | None:
    """Return the problems that a broker sees, without notes; None: no broker answers."""
    connection = http.client.HTTPConnection(endpoint, timeout=3)
    try:
        connection.request("GET", "/health")
        lines = connection.getresponse().read().decode(errors="replace").splitlines()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return [line for line in lines if line != "ok" and "DRAINING" not in line]


if __name__ == "__main__":
    main()
