"""The one line a server prints when everything in its process serves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from strata_runtime.loop import freeze_after_start


class ReadyLine:
    """Says that everything before it serves; the last service of a process.

    Args:
        fields: what stands in the line, asked when it is printed; the pid is added.
    """

    name = "ready line"

    def __init__(self, fields: Callable[[], Mapping[str, object]]) -> None:
        self._fields = fields

    async def start(self) -> None:
        """Print `ready KEY=VALUE ... pid=PID`."""
        freeze_after_start()
        fields = {**self._fields(), "pid": os.getpid()}
        print("ready", *(f"{key}={value}" for key, value in fields.items()), flush=True)

    async def stop(self, grace_s: float) -> None:
        """Nothing to stop."""
