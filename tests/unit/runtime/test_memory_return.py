"""Memory that a burst took goes back; who does not grow pays nothing."""

from __future__ import annotations

import gc
import weakref

import pytest

from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics

MIB = 1 << 20


class Process:
    """Resident memory that a test sets; a trim gives back what is named."""

    def __init__(self) -> None:
        self.resident_bytes = 100 * MIB
        self.trimmed_bytes = 0
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.resident_bytes -= self.trimmed_bytes


class Cycle:
    """Something that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def unexpected(name: str, failure: BaseException) -> None:
    raise AssertionError(name) from failure


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def memory(process: Process) -> MemoryReturn:
    return MemoryReturn(
        Metrics.disabled(),
        unexpected,
        interval_s=3_600,
        growth_bytes=10 * MIB,
        resident_bytes=lambda: process.resident_bytes,
        trim=process.trim,
    )


async def test_what_a_burst_left_in_cycles_goes_back(
    process: Process, memory: MemoryReturn
) -> None:
    """A process that has grown is collected and trimmed; its new floor is what stayed."""
    await memory.start()
    left = weakref.ref(Cycle())
    gc.disable()
    try:
        process.resident_bytes += 50 * MIB
        process.trimmed_bytes = 45 * MIB
        assert await memory.look()
    finally:
        gc.enable()
    assert left() is None
    assert process.trims == 1
    # 5 MiB stayed: they are in use.
    assert not await memory.look()
    await memory.stop(0)


async def test_who_does_not_grow_is_left_alone(process: Process, memory: MemoryReturn) -> None:
    """Small growth costs nothing, and less memory makes a lower floor."""
    await memory.start()
    process.resident_bytes += 9 * MIB
    assert not await memory.look()
    process.resident_bytes = 50 * MIB
    assert not await memory.look()
    process.resident_bytes = 61 * MIB
    assert await memory.look()
    await memory.stop(0)
