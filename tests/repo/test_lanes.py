"""The dealing out of tests to workers: a run ends, and says so, when a worker dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULE = """
import os, pathlib, signal, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_number(number):
    time.sleep(0.02)
    died = pathlib.Path({died!r})
    if {dies} and number == 5 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.timeout(180)
def test_a_run_whose_worker_dies_ends_and_names_the_test(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in ("conftest.py", "stages.py"):
        (tests / name).write_text((TESTS / name).read_text())
    for number in range(4):
        died = str(tmp_path / "died")
        module = MODULE.format(died=died, dies=number == 1)
        (tests / f"test_module_{number}.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert run.returncode == 1
    assert "test_module_1.py::test_number[5]" in run.stdout
    assert "1 failed, 24 passed" in run.stdout.splitlines()[-1]
