"""Ports for servers that tests start: each lane of a run has its own, none is given out twice."""

from __future__ import annotations

import os
import re

from strata_cli.local import plan

HOST = "127.0.0.1"
# Below the range from which the kernel takes ports for outgoing connections: one of those would
# take the port between this choice and the server's start.
PORTS = range(20_000, 32_000)
LANES = 8


def free_port() -> int:
    """Return a port that nothing listens on, and that nobody else is given.

    Raises:
        PlanError: this lane has none left.
    """
    return next(_free)


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row.

    Raises:
        PlanError: this lane has none left.
    """
    return next(plan.free_ports(_of_other_lanes(), run=count))


def free_endpoints(count: int) -> list[str]:
    """Return addresses of this machine at free ports."""
    return [f"{HOST}:{free_port()}" for _ in range(count)]


def _of_other_lanes() -> set[int]:
    number = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % LANES
    size = len(PORTS) // LANES
    return set(PORTS) - set(PORTS[number * size : (number + 1) * size])


_free = plan.free_ports(_of_other_lanes())
