"""The data folder of a machine: its id, its lock, and the data folder of each of its processes.

    DATA/machine.json                    id of the machine and role of its processes
    DATA/machine.lock                    held while they run
    DATA/shard-0, DATA/shard-1, ...      data folder of each storage node; of brokers DATA/worker-0

A storage node or broker that ran alone in DATA stays there as number 0; DATA/shard-1 and further
ones are new beside it (docs/data-layout.md section 1).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Self

from strata_cli.processes.data_folder import (
    IDENTITY_FILE,
    MACHINE_FILE,
    DataFolderError,
    FolderRole,
    identity_of,
    replace_json,
)

FORMAT_VERSION = 1
_LOCK = "machine.lock"

NAMES = {FolderRole.STORAGE: "shard", FolderRole.BROKER: "worker"}
"""Names of the processes of a role."""


class MachineFolder:
    """A machine's folder that this process has locked, between `open` and `close`.

    Attributes:
        path: the folder.
        role: of the processes.
        machine: id; it stays as long as the folder.
    """

    def __init__(self, path: Path, role: FolderRole, machine: str, *, lock: int) -> None:
        self.path = path
        self.role = role
        self.machine = machine
        self._lock = lock

    @classmethod
    def open(cls, path: Path, role: FolderRole) -> Self:
        """Lock a folder, made if it is not there, and read or make its id.

        Raises:
            DataFolderError: another process has it open, it is another role's, it cannot be
                written, or its id is unreadable.
        """
        check_role(path, role)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataFolderError(f"data folder {path}: {error.strerror}") from None
        try:
            _take(lock, path)
            machine = _machine_of(path, role)
            if not machine:
                machine = f"machine-{secrets.token_hex(6)}"
                values = {"format_version": FORMAT_VERSION, "machine_id": machine, "role": role}
                replace_json(path, MACHINE_FILE, values)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, role, machine, lock=lock)

    def process_folder(self, number: int) -> Path:
        """Return the data folder of a process of the machine."""
        if number == 0 and (self.path / IDENTITY_FILE).exists():
            return self.path
        return self.path / f"{NAMES[self.role]}-{number}"

    def beyond(self, count: int) -> list[tuple[int, Path]]:
        """Return the number and folder of each process that has an id and is not below `count`."""
        prefix = f"{NAMES[self.role]}-"
        found = [
            (int(number), entry)
            for entry in self.path.glob(f"{prefix}*")
            if (number := entry.name.removeprefix(prefix)).isdecimal()
            and (entry / IDENTITY_FILE).exists()
        ]
        return sorted((number, entry) for number, entry in found if number >= count)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


def has_machine(path: Path) -> bool:
    """Whether processes of a machine have run in a folder."""
    return (path / MACHINE_FILE).exists()


def check_role(path: Path, role: FolderRole) -> None:
    """Refuse a folder that is another role's.

    Raises:
        DataFolderError: it is.
    """
    if (path / IDENTITY_FILE).exists():
        found = identity_of(path).role
        if found not in ("", role):
            raise DataFolderError(
                f"data folder {path} is that of a {found} process: {role} needs its own"
            )
    _machine_of(path, role)


def _machine_of(path: Path, role: FolderRole) -> str:
    """Return the id in a folder; empty: there is none."""
    file = path / MACHINE_FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        version, machine, owner = (values[key] for key in ("format_version", "machine_id", "role"))
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise DataFolderError(f"{file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataFolderError(f"{file} is damaged: {error}") from None
    if version != FORMAT_VERSION:
        raise DataFolderError(f"{file}: format {version}, this version reads {FORMAT_VERSION}")
    if owner != role:
        raise DataFolderError(
            f"data folder {path} is that of {owner} processes: {role} needs its own"
        )
    return str(machine)


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        raise DataFolderError(
            f"data folder {path} is in use by process {holder or 'unknown'}"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
