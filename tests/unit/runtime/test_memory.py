"""Memory that was freed stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource
from strata_runtime.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        pieces = [bytes(1 << 20) for _ in range(32)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
by_default = faults()
assert keep_freed_memory(128 << 20)
faults()
print(by_default, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_large_buffers_are_used_again() -> None:
    """Buffers that come and go cost no page faults once the process keeps its memory."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, timeout=60, check=True
    )
    by_default, kept = map(int, done.stdout.split())
    assert kept * 20 < by_default, (by_default, kept)
