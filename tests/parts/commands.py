"""Commands of `strata` that tests run: in their own process where nothing else can get in the way.

A process for each command takes a second of a processor, nearly all of it for imports. A command in
the process of the test shares its streams and its environment, so it runs there only in the main
thread, where no second command and no other output can come between; and commands that have an
event loop of their own do not run inside the loop of a test.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from strata_cli.main import run

PROGRAM = (sys.executable, "-m", "strata_cli.main")
TIMEOUT_S = 60.0
_WITH_LOOPS = ("kv", "migrate", "tier")


class Done(NamedTuple):
    """The end of a command.

    Attributes:
        code: its exit code.
        out: its output.
        err: its errors.
    """

    code: int
    out: bytes
    err: bytes


def strata(*arguments: str, environment: Mapping[str, str], stdin: bytes = b"") -> Done:
    """Run a command and return how it ended.

    Args:
        arguments: of the command line.
        environment: variables beside those of this process.
        stdin: what it reads.
    """
    if threading.current_thread() is not threading.main_thread():
        return _as_process(arguments, environment, stdin)
    if arguments[0] in _WITH_LOOPS and asyncio._get_running_loop() is not None:
        return _as_process(arguments, environment, stdin)
    return _inside(arguments, environment, stdin)


def _inside(arguments: tuple[str, ...], environment: Mapping[str, str], stdin: bytes) -> Done:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    read = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "stdin", read),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = run(arguments)
    for each in (out, err):
        each.flush()
    return Done(code, out.detach().getvalue(), err.detach().getvalue())


def _as_process(arguments: tuple[str, ...], environment: Mapping[str, str], stdin: bytes) -> Done:
    done = subprocess.run(
        [*PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | environment,
    )
    return Done(done.returncode, done.stdout, done.stderr)
