"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cpu_limit: Path = _CPU_LIMIT) -> int:
    """Return the cores that the system lets this process use, at least one.

    They are those of its affinity, and no more than the limit of its container, rounded up.

    Args:
        cpu_limit: `cpu.max` of cgroup v2: QUOTA PERIOD, both in microseconds, or max PERIOD.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_limit.read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no such limit, or of another kind: the affinity is all that is known
    return max(1, cores)
