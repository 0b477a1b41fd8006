"""Settings for memory that the C library has freed.

By default glibc gives buffers of megabytes back to the kernel when they are freed, and each new one
costs a page fault per 4 KiB: in a process that always moves large buffers, the faults took longer
than the moving (docs/performance.md, tier).
"""

from __future__ import annotations

import ctypes

_MIB = 1024 * 1024

# Names in malloc.h; the largest threshold that glibc takes is 32 MiB.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_THRESHOLD_BYTES = 32 * _MIB
# The interpreter's lock lets one thread at a time ask for memory; each arena keeps its own.
_ARENAS = 2


def keep_freed_memory(limit_bytes: int = 128 * _MIB) -> bool:
    """Let this process keep memory that was freed, to use it again; for its whole life.

    Args:
        limit_bytes: what it keeps at the end of its heap before it gives something back.

    Returns:
        Whether the C library can be told.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        # Another C library than glibc.
        return False
    wanted = (
        (_M_ARENA_MAX, _ARENAS),
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, limit_bytes),
    )
    return all([mallopt(name, value) == 1 for name, value in wanted])
