"""A process of a machine, as it sees itself: `python -m strata_cli.machine.child`.

Standard input brings one line, its orders (JSON), and then nothing until it closes: the process is
to end, or its supervisor has died. So both are one event, and signals that the system sends to all
processes of a service do no harm. Standard output takes one line: the fields of its ready line, or
why it cannot start.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.place import MachinePlace
from strata_runtime.config import to_private_json
from strata_runtime.ending import end_process
from strata_runtime.errors import StrataError, one_line


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of the supervisor to a process.

    Attributes:
        role: storage or broker.
        config: of the process, secrets included.
        data_dir: its data folder.
        place: which process of which machine it is.
    """

    role: FolderRole
    config: ClusterConfig
    data_dir: Path
    place: MachinePlace

    def to_line(self) -> bytes:
        """Return it as one line."""
        values = {
            "role": self.role,
            "config": json.loads(to_private_json(self.config)),
            "data_dir": str(self.data_dir),
            "place": asdict(self.place),
        }
        return json.dumps(values, default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Orders:
        """Return what a line says."""
        values = json.loads(line)
        place = MachinePlace(**values["place"])
        if place.shared_folder is not None:
            place = replace(place, shared_folder=Path(place.shared_folder))
        return cls(
            FolderRole(values["role"]),
            ClusterConfig.model_validate(values["config"]),
            Path(values["data_dir"]),
            place,
        )


def main() -> None:
    """Run the process that standard input asks for."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    end_process(_run())


def _run() -> int:
    # Read from the descriptor itself: a buffer would take bytes away from the event loop.
    orders = Orders.from_line(_first_line(sys.stdin.fileno()))
    try:
        runner_of(orders.role)(orders.config, orders.data_dir, orders.place)
    except (StrataError, OSError) as error:
        print(json.dumps({"failed": one_line(error)}), flush=True)
        return 1
    return 0


def _first_line(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        part = os.read(descriptor, 1 << 16)
        if not part:
            raise EOFError("the supervisor has gone")
        parts.append(part)
    return b"".join(parts)


def runner_of(role: FolderRole) -> Callable[[ClusterConfig, Path, MachinePlace], None]:
    """Return what runs a process of a role until it is told to stop."""
    if role is FolderRole.BROKER:
        from strata_cli.processes.broker import run
    else:
        from strata_cli.processes.storage import run
    return run


if __name__ == "__main__":
    main()
