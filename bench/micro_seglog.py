"""The CommitLog against a bare pwritev and fdatasync of the same sizes, in the same run.

    python bench/micro_seglog.py [--folder DIR] [--seconds 3]

Prints JSON. Works in a temporary folder below `--folder` and removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from strata_seglog.frames import HEADER_BYTES, Frame, FrameKind
from strata_seglog.log import CommitLog, LogOptions
from strata_seglog.real_disk import RealDisk
from strata_testing.simulated_disk import SimulatedDisk

MIB = 1024 * 1024
# (name, frames per write, payload bytes of a frame): a batch of 64 messages is one frame.
CASES = (
    ("64 x 1 KB in one frame", 1, 64 * 1024),
    ("64 x 100 B in one frame", 1, 6_400),
    ("64 frames of 1 KB in one write", 64, 1024),
)


def main() -> None:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    options = parser.parse_args()
    sys.setswitchinterval(0.0001)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        results = {
            "append": [measure(folder, *case, options.seconds) for case in CASES],
            "overhead_us_per_frame": overhead(),
            "recovery": recovery(folder / "recovery"),
        }
    print(json.dumps(results, indent=2))


def measure(
    folder: Path, name: str, frames: int, payload_bytes: int, seconds: float
) -> dict[str, float | str]:
    """Alternate log and bare writes in slices, so that both see the same disk."""
    head = os.urandom(60)
    body = os.urandom(payload_bytes - len(head))
    log_folder = folder / f"log-{frames}-{payload_bytes}"
    log = CommitLog.open(RealDisk(log_folder), LogOptions(), report=print)
    bare = RealDisk(folder / f"bare-{frames}-{payload_bytes}").open("file", create=True)
    bare.allocate(256 * MIB)
    bare.sync()
    index, position = 0, 0

    def append() -> None:
        nonlocal index
        batch = []
        for _ in range(frames):
            index += 1
            batch.append(Frame(FrameKind.ENTRY, 1, 1, 1, index, payload=(head, body)))
        log.write_and_sync(batch)

    buffers = [bytes(HEADER_BYTES), head, body] * frames
    length = frames * (HEADER_BYTES + payload_bytes)

    def write() -> None:
        nonlocal position
        if position + length > 256 * MIB:
            position = 0
        bare.write(position, buffers)
        bare.sync()
        position += length

    rounds = 10
    log_s, bare_s, log_calls, bare_calls = 0.0, 0.0, 0, 0
    for _ in range(rounds):
        elapsed, calls = repeat(append, seconds / rounds)
        log_s, log_calls = log_s + elapsed, log_calls + calls
        elapsed, calls = repeat(write, seconds / rounds)
        bare_s, bare_calls = bare_s + elapsed, bare_calls + calls
    log.free_before({1: index + 1})
    log.close()
    bare.close()
    log_rate, bare_rate = log_calls / log_s, bare_calls / bare_s
    return {
        "case": name,
        "writes_per_s": round(log_rate),
        "frames_per_s": round(log_rate * frames),
        "mb_per_s": round(log_rate * frames * payload_bytes / 1e6, 1),
        "bare_writes_per_s": round(bare_rate),
        "bare_mb_per_s": round(bare_rate * frames * payload_bytes / 1e6, 1),
        "share_of_bare_percent": round(100 * log_rate / bare_rate, 1),
    }


def repeat(act: Callable[[], None], seconds: float) -> tuple[float, int]:
    """Return (seconds, calls)."""
    calls = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        act()
        calls += 1
    return time.perf_counter() - began, calls


class NullDisk(SimulatedDisk):
    """A disk whose files take everything and do nothing: what remains is our own cost."""

    def open(self, name: str, *, create: bool) -> NullFile:
        """Return a file that is all zeros."""
        if create:
            super().open(name, create=True)
        return NullFile()


class NullFile:
    """Zeros without end."""

    def write(self, position: int, buffers: object) -> None:
        """Drop it."""

    def sync(self) -> None:
        """Do nothing."""

    def read(self, position: int, length: int) -> bytes:
        """Return zeros."""
        return bytes(length)

    def allocate(self, length: int) -> None:
        """Do nothing."""

    def truncate(self, length: int) -> None:
        """Do nothing."""

    def size(self) -> int:
        """Return nothing."""
        return 0

    def close(self) -> None:
        """Do nothing."""


def overhead() -> float:
    """Time of `write_and_sync` per frame of 100 B, 64 a write, without system calls."""
    options = LogOptions(recent_bytes=MIB)
    log = CommitLog.open(NullDisk(), options, report=print)
    head, body = os.urandom(40), os.urandom(60)
    batches = [
        [
            Frame(FrameKind.ENTRY, 1, 1, 1, number * 64 + each + 1, payload=(head, body))
            for each in range(64)
        ]
        for number in range(500)
    ]
    began = time.perf_counter()
    for batch in batches:
        log.write_and_sync(batch)
    elapsed = time.perf_counter() - began
    return round(elapsed / (len(batches) * 64) * 1e6, 2)


def recovery(folder: Path) -> list[dict[str, float | str]]:
    """Time of opening an unsealed segment of 256 MiB that is nearly full."""
    results: list[dict[str, float | str]] = []
    for payload_bytes in (64 * 1024, 1024):
        disk = RealDisk(folder / str(payload_bytes))
        log = CommitLog.open(disk, LogOptions(), report=print)
        body, index = os.urandom(payload_bytes), 0
        while log.end_position < 250 * MIB:
            frames = [
                Frame(FrameKind.ENTRY, 1, 1, 1, index + each + 1, payload=(body,))
                for each in range(MIB // payload_bytes)
            ]
            index += len(frames)
            log.write_and_sync(frames)
        began = time.perf_counter()
        again = CommitLog.open(disk, LogOptions(), report=print)
        elapsed = time.perf_counter() - began
        assert again.replicas()[1].last_index == index
        again.close()
        log.close()
        results.append(
            {"case": f"{index} frames of {payload_bytes} B", "seconds": round(elapsed, 3)}
        )
    return results


if __name__ == "__main__":
    main()
