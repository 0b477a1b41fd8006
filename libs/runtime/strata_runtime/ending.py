"""The end of a process whose native libraries have threads of their own."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

# Libraries whose threads outlive the last call, and may ask for the interpreter at any time.
_WITH_THREADS = ("hdfs_native",)


def end_process(code: int) -> NoReturn:
    """End this process with an exit code, whatever native threads are doing.

    An interpreter that shuts down ends each thread that asks for its lock, in the middle of what
    it does. A thread of hdfs-native (0.14.7) asks for it after it has handed over a result, and
    Rust answers such an end with `abort`: under load about half of all processes that had used
    HDFS ended with SIGABRT instead of their exit code. With such a library in the process nothing
    is shut down: exit handlers run, what was written is flushed, and the process is over.
    """
    if not any(name in sys.modules for name in _WITH_THREADS):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 1
    os._exit(code)
