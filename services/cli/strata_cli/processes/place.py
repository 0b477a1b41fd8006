"""The place of a process: alone, or on a machine beside others that one command started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MachinePlace:
    """See the module docstring.

    Attributes:
        machine: for placement; empty: the process is a machine of its own.
        count: processes of its role that the machine starts together.
        number: which of these it is, from 0.
        shared_folder: of what these processes share; None: the data folder of the process.
        is_supervised: a supervisor started it and closes its standard input to end it.
    """

    machine: str = ""
    count: int = 1
    number: int = 0
    shared_folder: Path | None = None
    is_supervised: bool = False


ALONE = MachinePlace()
