"""The data folder: its lock, its identity, its layout (docs/data-layout.md section 1).

Ids are stored here and nowhere else (rule 8): an emptied folder becomes another node, whose
replicas get ids that were never used. A folder has one role and one cluster (rule 32). The
identity is written once, synced, and never changed; only the cluster is added once. A nameserver
adds it when it first meets its peers, any other process when it first joins.

Nothing else is written before `claim`: a process in the wrong cluster leaves every byte as it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from strata_runtime.errors import StrataError
from strata_runtime.files import replace_file

FORMAT_VERSION = 1

RESTORE_FILE = "restore.unfinished"
"""In a folder into which `strata tier restore` has not written everything yet."""

_FIRST_BYTES = 16
_LOCK = "LOCK"
IDENTITY_FILE = "identity.json"
MACHINE_FILE = "machine.json"
"""In a folder that holds the data folders of several processes (`strata_cli.machine.folder`)."""


class DataFolderError(StrataError):
    """A data folder that cannot be used; the message says which and why."""


class FolderRole(StrEnum):
    """The kind of process that a data folder is for."""

    STANDALONE = "standalone"
    NAMESERVER = "nameserver"
    STORAGE = "storage"
    BROKER = "broker"

    @property
    def described(self) -> str:
        """The process in a sentence, without an article."""
        return {"storage": "storage node", "standalone": "standalone node"}.get(
            self.value, self.value
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids of a data folder.

    Attributes:
        format_version: of the whole folder.
        cluster_id: of the cluster that the folder belongs to; empty: of none yet.
        nameserver_node_id: of the nameserver in it.
        metadata_replica_id: of its replica of the metadata raft group.
        storage_node_id: of the storage node in it.
        broker_node_id: of the broker that runs beside them.
        initial_metadata_replica_ids: replicas the metadata raft group began with; empty: it is
            not formed, or the nameserver is the only one.
        role: of the process that the folder is for; empty: of any, it holds nothing yet.
    """

    format_version: int
    cluster_id: str
    nameserver_node_id: str
    metadata_replica_id: int
    storage_node_id: str
    broker_node_id: str
    initial_metadata_replica_ids: tuple[int, ...] = ()
    role: str = ""

    @classmethod
    def fresh(cls, role: FolderRole) -> Self:
        """Return ids that nobody ever had; a standalone node is a cluster of its own."""
        return cls(
            format_version=FORMAT_VERSION,
            cluster_id=secrets.token_hex(8) if role is FolderRole.STANDALONE else "",
            nameserver_node_id=f"nameserver-{secrets.token_hex(6)}",
            # 63 random bits: there is no cluster yet that could count ids.
            metadata_replica_id=secrets.randbits(62) | 1 << 62,
            storage_node_id=f"storage-{secrets.token_hex(6)}",
            broker_node_id=f"broker-{secrets.token_hex(6)}",
            role=role,
        )

    def node_id(self, role: FolderRole) -> str:
        """Return the node id of the process of a role; of a standalone node the storage node's."""
        return {
            FolderRole.NAMESERVER: self.nameserver_node_id,
            FolderRole.BROKER: self.broker_node_id,
        }.get(role, self.storage_node_id)


class DataFolder:
    """A data folder that this process has locked, between `open` and `close`.

    Attributes:
        path: the folder.
        identity: who lives in it.
    """

    def __init__(self, path: Path, lock: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        role: FolderRole,
        new_identity: Identity | None = None,
        *,
        restores: bool = False,
    ) -> Self:
        """Lock a folder, made if it is not there, and read or make its identity.

        Args:
            path: the folder.
            role: of the process.
            new_identity: what a folder without one gets; None: ids that nobody ever had.
            restores: it is opened by the restore that fills it.

        Raises:
            DataFolderError: another process has it open, it is another role's, it cannot be
                written, its identity is unreadable or of another format, or a restore into it has
                not ended.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataFolderError(f"data folder {path}: {error.strerror}") from None
        try:
            _take(lock, path)
            if not restores:
                _check_restored(path)
            identity = _read(path)
            if identity is None:
                _check_alone(path)
                identity = new_identity or Identity.fresh(role)
                _sign(lock)
                _write(path, identity)
            _check_role(path, identity, role)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, replace(identity, role=role))

    def claim(self) -> None:
        """Record this process as the owner: the folder is the right one."""
        _sign(self._lock)

    def join(self, cluster_id: str) -> None:
        """Record, synced, the cluster of the folder; nothing changes if it is known.

        Raises:
            DataFolderError: it belongs to another one, or the folder cannot be written.
        """
        self._check(cluster_id)
        if not self.identity.cluster_id:
            joined = replace(self.identity, cluster_id=cluster_id)
            _write(self.path, joined)
            self.identity = joined

    def has_log(self) -> bool:
        """Whether a storage node has ever written anything here.

        Raises:
            DataFolderError: the folder cannot be read.
        """
        try:
            for segment in self.storage.glob("log/*.log"):
                with segment.open("rb") as file:
                    # A segment is full of zeros until its first frame is written.
                    if any(file.read(_FIRST_BYTES)):
                        return True
        except OSError as error:
            raise DataFolderError(f"data folder {self.path}: {error.strerror}") from None
        return False

    def form(self, cluster_id: str, replica_ids: Sequence[int]) -> None:
        """Record, synced, with which replicas the metadata raft group begins.

        Args:
            cluster_id: that all of them use.
            replica_ids: of all nameservers, including this one.

        Raises:
            DataFolderError: it was formed otherwise before, or the folder cannot be written.
        """
        formed = replace(
            self.identity,
            cluster_id=cluster_id,
            initial_metadata_replica_ids=tuple(sorted(replica_ids)),
        )
        if formed == self.identity:
            return
        self._check(cluster_id)
        _write(self.path, formed)
        self.identity = formed

    def _check(self, cluster_id: str) -> None:
        if self.identity.cluster_id not in ("", cluster_id):
            raise DataFolderError(
                f"data folder {self.path} belongs to cluster {self.identity.cluster_id}, "
                f"not {cluster_id}"
            )

    @property
    def nameserver(self) -> Path:
        """Folder of the nameserver."""
        return self.path / "nameserver"

    @property
    def storage(self) -> Path:
        """Folder of the storage node."""
        return self.path / "storage"

    @property
    def tls(self) -> Path:
        """Folder of the self-signed certificate."""
        return self.path / "tls"

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


def identity_of(path: Path) -> Identity:
    """Return the identity of a folder, for a tool that works on its files.

    Raises:
        DataFolderError: it is not a data folder, or its identity is unreadable.
    """
    identity = _read(path)
    if identity is None:
        _check_alone(path)
        raise DataFolderError(f"{path} is not a data folder")
    return identity


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an existing folder, for a tool that works on its files.

    Raises:
        DataFolderError: another process has it open.
    """
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataFolderError(f"data folder {path}: {error.strerror}") from None
    try:
        _take(lock, path)
        _sign(lock)
        yield
    finally:
        os.close(lock)


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
        raise DataFolderError(
            f"data folder {path} is in use by process {holder or 'unknown'}"
        ) from None


def _check_role(path: Path, identity: Identity, role: FolderRole) -> None:
    if identity.role not in ("", role):
        raise DataFolderError(
            f"data folder {path} is that of a {identity.role} process: {role} needs its own"
        )


def _check_restored(path: Path) -> None:
    """Refuse a folder that a restore has filled in part: what is missing would count as lost."""
    if (path / RESTORE_FILE).exists():
        raise DataFolderError(
            f"data folder {path}: a restore into it has not ended: empty the folder and restore "
            "again"
        )


def _check_alone(path: Path) -> None:
    if (path / MACHINE_FILE).exists():
        raise DataFolderError(
            f"{path} holds the data folders of several processes: name one of them, for instance "
            f"{path / 'shard-0'}"
        )


def _sign(lock: int) -> None:
    """Write the owner into a lock file."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _read(path: Path) -> Identity | None:
    file = path / IDENTITY_FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataFolderError(f"{file}: {error.strerror}") from None
    try:
        values = json.loads(text)
        initial = tuple(values.pop("initial_metadata_replica_ids", ()))
        identity = Identity(**values, initial_metadata_replica_ids=initial)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataFolderError(f"{file} is damaged: {error}") from None
    if identity.format_version != FORMAT_VERSION:
        raise DataFolderError(
            f"{file}: format {identity.format_version}, this version reads {FORMAT_VERSION}"
        )
    return identity if identity.role else _of_old_format(path, identity)


def _of_old_format(path: Path, identity: Identity) -> Identity:
    """Return the identity of a folder of the old format without a role.

    Every such folder has its own cluster id, which only matters for a standalone node and for a
    nameserver that knew its peers. A folder without data may become any role's.
    """
    has_nameserver, has_storage = (path / "nameserver").is_dir(), (path / "storage").is_dir()
    if has_nameserver and has_storage:
        return replace(identity, role=FolderRole.STANDALONE)
    role = FolderRole.NAMESERVER if has_nameserver else FolderRole.STORAGE if has_storage else ""
    is_formed = bool(identity.initial_metadata_replica_ids)
    return replace(identity, role=role, cluster_id=identity.cluster_id if is_formed else "")


def _write(path: Path, identity: Identity) -> None:
    replace_json(path, IDENTITY_FILE, asdict(identity))


def replace_json(folder: Path, name: str, values: Mapping[str, object]) -> None:
    """Write a file of a folder atomically and synced: after a crash the old or the new is there.

    Raises:
        DataFolderError: it cannot be written.
    """
    text = json.dumps(values, indent=2)
    try:
        replace_file(folder / name, f"{text}\n".encode())
    except OSError as error:
        raise DataFolderError(f"data folder {folder}: {error.strerror}") from None
