"""The console of a standalone node: orders come on standard input, see `console_port`."""

from __future__ import annotations

import json
import os
import socket
import sys

from strata_cli.options import Common
from strata_cli.processes.console_config import ConsoleSection
from strata_console.server import run
from strata_runtime.ending import end_process
from strata_runtime.errors import StrataError, one_line

_MAX_ORDERS = 1 << 16


def main() -> None:
    """Serve the socket that the node listens on."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    end_process(_run())


def _run() -> int:
    # Read from the descriptor itself: a buffer would take bytes away from the event loop. The node
    # writes one line, at once.
    orders = json.loads(os.read(sys.stdin.fileno(), _MAX_ORDERS))
    listener = socket.socket(fileno=orders["listener"])
    try:
        run(
            ConsoleSection.model_validate(orders["config"]),
            Common(endpoint=orders["operators"]),
            clients=orders["clients"],
            listener=listener,
            is_supervised=True,
        )
    except (StrataError, OSError) as error:
        print(f"strata: the console: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
