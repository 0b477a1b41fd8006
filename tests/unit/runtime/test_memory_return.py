"""Memory that a burst took goes back; who does not grow pays nothing."""

from __future__ import annotations

import gc
import weakref

import pytest

from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

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
        self.trimmed_bytes = 0


class Collector:
    """A collector that says what it was asked for, and takes its time."""

    def __init__(self, process: Process, clock: ManualClock) -> None:
        self.process = process
        self.clock = clock
        self.generations: list[int] = []
        self.gives_back_bytes = {1: 0, 2: 0}
        self.takes_s = {1: 0.01, 2: 0.3}

    def __call__(self, generation: int) -> None:
        self.generations.append(generation)
        self.clock.advance(self.takes_s[generation])
        self.process.resident_bytes -= self.gives_back_bytes[generation]


class Cycle:
    """Something that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def unexpected(name: str, failure: BaseException) -> None:
    raise AssertionError(name) from failure


def memory_of(process: Process, collector: Collector, clock: ManualClock) -> MemoryReturn:
    return MemoryReturn(
        Metrics.disabled(),
        unexpected,
        growth_bytes=10 * MIB,
        interval_s=3_600,
        resident_bytes=lambda: process.resident_bytes,
        trim=process.trim,
        collect=collector,
        clock=clock,
    )


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
        assert await memory.check()
    finally:
        gc.enable()
    assert left() is None
    assert process.trims == 1
    # 5 MiB stayed: they are in use.
    assert not await memory.check()
    await memory.stop(0)


async def test_who_does_not_grow_is_left_alone(process: Process, memory: MemoryReturn) -> None:
    """Small growth costs nothing, and less memory makes a lower floor."""
    await memory.start()
    process.resident_bytes += 9 * MIB
    assert not await memory.check()
    process.resident_bytes = 50 * MIB
    assert not await memory.check()
    process.resident_bytes = 61 * MIB
    assert await memory.check()
    await memory.stop(0)


async def test_old_objects_are_collected_only_if_young_ones_were_not_enough() -> None:
    """A burst is young; a look at everything that lives stops the loop."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    memory = memory_of(process, collector, clock)
    await memory.start()
    process.resident_bytes += 50 * MIB
    collector.gives_back_bytes[1] = 45 * MIB
    assert await memory.check()
    assert collector.generations == [1]

    clock.advance(3_600)
    collector.gives_back_bytes = {1: 5 * MIB, 2: 40 * MIB}
    process.resident_bytes += 50 * MIB
    assert await memory.check()
    assert collector.generations == [1, 1, 2]
    await memory.stop(0)


async def test_looks_have_a_limited_share_of_the_time() -> None:
    """A process that grows without end and gives nothing back is not looked at without end."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    memory = memory_of(process, collector, clock)
    await memory.start()
    began_s = clock.monotonic_s()
    for _ in range(1_000):
        process.resident_bytes += 20 * MIB
        await memory.check()
        clock.advance(1)
    looked_s = sum(collector.takes_s[generation] for generation in collector.generations)
    assert collector.generations[:4] == [1, 2, 1, 2]
    assert looked_s < (clock.monotonic_s() - began_s) / 25
    await memory.stop(0)


async def test_what_a_burst_frees_after_a_look_goes_back() -> None:
    """The look in its middle finds nothing; the C library keeps what is freed later."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    memory = memory_of(process, collector, clock)
    await memory.start()
    process.resident_bytes += 200 * MIB
    assert await memory.check()
    assert process.trims == 2
    # The burst ends; resident memory stays what it is until somebody trims.
    process.trimmed_bytes = 190 * MIB
    clock.advance(12)
    assert await memory.check()
    assert process.resident_bytes == 110 * MIB
    trims = process.trims
    for _ in range(1_000):
        clock.advance(1)
        await memory.check()
    # Soon it is left alone.
    assert trims < process.trims <= trims + 2 * 7
    trims = process.trims
    clock.advance(3_600)
    assert not await memory.check()
    assert process.trims == trims
    await memory.stop(0)


async def test_a_process_that_fills_its_caches_is_seldom_walked() -> None:
    """Growth that stays is no garbage: a walk in vain is followed by one at twice the memory."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    collector.takes_s[2] = 0.5
    memory = memory_of(process, collector, clock)
    await memory.start()
    for _ in range(150):
        process.resident_bytes += 2 * MIB
        await memory.check()
        clock.advance(1)
    # 100 MiB have become 400 MiB; before, everything was walked at each look.
    looks, walks = (collector.generations.count(generation) for generation in (1, 2))
    assert looks > 8
    assert walks == 2
    await memory.stop(0)


async def test_what_was_alive_in_a_walk_is_walked_again_when_nothing_grows() -> None:
    """The garbage of a burst that was walked in its middle is old, and nothing else shows it."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    collector.takes_s[2] = 2.0
    memory = memory_of(process, collector, clock)
    await memory.start()
    process.resident_bytes += 100 * MIB
    assert await memory.check()
    collector.gives_back_bytes[2] = 95 * MIB
    for _ in range(1_000):
        clock.advance(1)
        await memory.check()
        if process.resident_bytes < 200 * MIB:
            collector.gives_back_bytes[2] = 0
    assert process.resident_bytes == 105 * MIB
    assert collector.generations.count(2) == 2
    await memory.stop(0)


async def test_what_a_burst_frees_after_an_expensive_look_goes_back_without_another_one() -> None:
    """The look stops the loop and is not repeated for long; a trim runs beside it."""
    process, clock = Process(), ManualClock()
    collector = Collector(process, clock)
    collector.takes_s = {1: 0.5, 2: 1.0}
    memory = memory_of(process, collector, clock)
    await memory.start()
    process.resident_bytes += 300 * MIB
    assert await memory.check()
    assert collector.generations == [1, 2]
    process.trimmed_bytes = 290 * MIB
    clock.advance(1.0)
    assert not await memory.check()
    clock.advance(1.0)
    assert await memory.check()
    assert process.resident_bytes == 110 * MIB
    assert collector.generations == [1, 2]
    # The series goes on until a look may be repeated, which is the last one.
    for _ in range(300):
        clock.advance(1.0)
        await memory.check()
    assert collector.generations[2:]
    trims = process.trims
    clock.advance(1_000.0)
    assert not await memory.check()
    assert process.trims == trims < 20
    await memory.stop(0)
