"""Commands in the process of a test leave it as it was, and end as a process of their own does."""

from __future__ import annotations

import os
import sys
import threading

from tests.parts.commands import Done, strata

NOWHERE = {"STRATA_ENDPOINT": "127.0.0.1:1"}
COMMAND = ("topic", "list", "--timeout", "1s")


def test_streams_and_environment_are_put_back() -> None:
    """The command has both for itself: another one after it sees nothing of them."""
    streams, variables = (sys.stdin, sys.stdout, sys.stderr), dict(os.environ)
    done = strata(*COMMAND, environment=NOWHERE)
    assert (done.code, done.out) == (5, b"")
    assert done.err == b"strata: cannot reach 127.0.0.1:1: connection refused\n"
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert dict(os.environ) == variables


def test_elsewhere_it_is_a_process_and_ends_alike() -> None:
    """In another thread the streams are not free: what the main thread prints would be in them."""
    done: list[Done] = []
    thread = threading.Thread(target=lambda: done.append(strata(*COMMAND, environment=NOWHERE)))
    thread.start()
    thread.join()
    assert done == [strata(*COMMAND, environment=NOWHERE)]


async def test_a_command_with_a_loop_of_its_own_is_a_process_inside_a_loop() -> None:
    """It reads and checks its input as ever."""
    done = strata("kv", "import", "--table", "t", environment=NOWHERE, stdin=b"")
    assert b"event loop" not in done.err
    assert done.code != 0
