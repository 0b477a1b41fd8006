"""The `strata` command that, at its end, writes down what it imported: TELL_MODULES_TO.

It is run as a program of its own, in the place of `strata`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from strata_cli.main import run


def main() -> int:
    """Run the command line, then write modules and threads as JSON."""
    threads: set[str] = set()
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        threads.add(thread.name)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]
    code = run(sys.argv[1:])
    told = {"modules": sorted(sys.modules), "threads": sorted(threads)}
    Path(os.environ["TELL_MODULES_TO"]).write_text(json.dumps(told))
    return code


if __name__ == "__main__":
    sys.exit(main())
