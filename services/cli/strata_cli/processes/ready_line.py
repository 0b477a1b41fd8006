"""The one line a server prints when everything in its process serves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from strata_runtime.garbage import freeze_after_start
from strata_runtime.health import ProcessHealth


class ReadyLine:
    """Says that everything before it serves; the last service of a process.

    Args:
        fields: fields of the line, read when it is printed; the pid is added.
        health: told when everything runs, and when the stop begins; None: there is none.
        as_json: the line is one JSON object, for a supervisor.
    """

    name = "ready line"

    def __init__(
        self,
        fields: Callable[[], Mapping[str, object]],
        health: ProcessHealth | None = None,
        *,
        as_json: bool = False,
    ) -> None:
        self._as_json = as_json
        self._fields = fields
        self._health = health

    async def start(self) -> None:
        """Print `ready KEY=VALUE ... pid=PID`."""
        freeze_after_start()
        if self._health is not None:
            self._health.running()
        fields = {**self._fields(), "pid": os.getpid()}
        line = json.dumps(fields, default=str) if self._as_json else _text_of(fields)
        # One write, so that who reads along never sees a part of the line: where output is not
        # buffered, `print` writes each of its arguments for itself.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    async def stop(self, grace_s: float) -> None:
        """Tell probes that the process stops; it is the first to be stopped."""
        if self._health is not None:
            self._health.stopping()


def _text_of(fields: Mapping[str, object]) -> str:
    """Return `ready KEY=VALUE ...`."""
    return " ".join(["ready", *(f"{key}={value}" for key, value in fields.items())])
