"""One short run of the soak: it works, and everything that was sent is delivered.

`make soak MINUTES=120` runs it for as long as growth needs to be seen.
"""

import json
import subprocess
import sys

import pytest

from tests.soak.load import TYPES

LIMIT_S = 600.0


@pytest.mark.timeout(LIMIT_S)
def test_a_short_run_works() -> None:
    """Every figure of every process is sampled; whether it is flat, half a minute cannot say."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--rate", "20"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stderr, done.stdout)
    shown = json.loads(done.stdout)
    assert [wrong for wrong in shown["wrong"] if " grew " not in wrong] == []
    assert set(shown["delivered"]) == set(TYPES)
    figures = shown["figures"]
    assert len(figures["memory_mb"]) == len(figures["descriptors"]) == 9
    assert len(figures["rows_mb"]) == len(figures["log_mb"]) == 6
    assert figures["p99_ms"]["clients"]["most"] > 0
    least = min(course["most"] for of in figures.values() for course in of.values())
    assert least >= 0
    assert figures["rows_mb"]["storage-1"]["most"] > 0
