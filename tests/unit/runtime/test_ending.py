"""A process ends with its exit code, whatever native threads are doing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Its threads may ask for the interpreter when it shuts down: the test is about who skips that.
_ENDS = """
import atexit, sys, types
from strata_runtime.ending import end_process
{loaded}
class LastWords:
    def __del__(self):
        print("shut down")
kept = LastWords()
atexit.register(print, "exit handler")
print("flushed", end=" ")
end_process(7)
"""
_LOADED = "sys.modules['hdfs_native'] = types.ModuleType('hdfs_native')"


@pytest.mark.parametrize(
    ("loaded", "output"),
    [("", "flushed exit handler\nshut down\n"), (_LOADED, "flushed exit handler\n")],
    ids=["without native threads", "with native threads"],
)
def test_an_end_is_orderly_unless_native_threads_may_be_at_work(loaded: str, output: str) -> None:
    """Nothing is shut down under them; handlers run and output is written all the same."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDS.format(loaded=loaded)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, output, "")
