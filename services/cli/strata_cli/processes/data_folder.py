"""The data folder: its lock, its identity, where things are (docs/data-layout.md section 1).

Ids live here and nowhere else (rule 8): a folder that was emptied becomes another node, whose
replicas get ids that were never used. The identity is written once, synced, and never changed;
only a nameserver of a cluster adds, once, what it and its peers agreed on when they first met.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from strata_runtime.errors import StrataError

FORMAT_VERSION = 1

_LOCK = "LOCK"
_IDENTITY = "identity.json"


class DataFolderError(StrataError):
    """A data folder that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a data folder is called.

    Attributes:
        format_version: of the whole folder.
        cluster_id: of the cluster that the folder belongs to; a nameserver's holds once its
            metadata raft group is formed.
        nameserver_node_id: of the nameserver in it.
        metadata_replica_id: of its replica of the metadata raft group.
        storage_node_id: of the storage node in it.
        broker_node_id: of the broker that runs beside them.
        initial_metadata_replica_ids: replicas the metadata raft group began with; empty: it is
            not formed, or the nameserver is the only one.
    """

    format_version: int
    cluster_id: str
    nameserver_node_id: str
    metadata_replica_id: int
    storage_node_id: str
    broker_node_id: str
    initial_metadata_replica_ids: tuple[int, ...] = ()

    @classmethod
    def fresh(cls) -> Self:
        """Return ids that nobody ever had."""
        return cls(
            format_version=FORMAT_VERSION,
            cluster_id=secrets.token_hex(8),
            nameserver_node_id=f"nameserver-{secrets.token_hex(6)}",
            # 63 bits: random instead of counted, because nobody is there to count yet.
            metadata_replica_id=secrets.randbits(62) | 1 << 62,
            storage_node_id=f"storage-{secrets.token_hex(6)}",
            broker_node_id=f"broker-{secrets.token_hex(6)}",
        )


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
    def open(cls, path: Path, new_identity: Identity | None = None) -> Self:
        """Lock a folder, made if it is not there, and read or make its identity.

        Args:
            path: the folder.
            new_identity: what a folder without one gets; None: ids that nobody ever had.

        Raises:
            DataFolderError: another process has it open, it cannot be written, or its identity
                is unreadable or of another format.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataFolderError(f"data folder {path}: {error.strerror}") from None
        try:
            _take(lock, path)
            identity = _read(path) or _make(path, new_identity or Identity.fresh())
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, identity)

    def form(self, cluster_id: str, replica_ids: Sequence[int]) -> None:
        """Note, synced, with which replicas the metadata raft group begins.

        Args:
            cluster_id: what all of them call the cluster.
            replica_ids: of all nameservers, this one's among them.

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
        if self.identity.initial_metadata_replica_ids:
            raise DataFolderError(
                f"data folder {self.path} belongs to cluster {self.identity.cluster_id}, "
                f"not {cluster_id}"
            )
        _write(self.path, formed)
        self.identity = formed

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
        """Give the lock back."""
        os.close(self._lock)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that is there, for a tool that works on its files.

    Raises:
        DataFolderError: another process has it open.
    """
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataFolderError(f"data folder {path}: {error.strerror}") from None
    try:
        _take(lock, path)
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
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _read(path: Path) -> Identity | None:
    file = path / _IDENTITY
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
    return identity


def _make(path: Path, identity: Identity) -> Identity:
    _write(path, identity)
    return identity


def _write(path: Path, identity: Identity) -> None:
    """Write an identity so that the old one or the new one is there, whatever happens."""
    unfinished = path / f"{_IDENTITY}.new"
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(asdict(identity), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path / _IDENTITY)
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise DataFolderError(f"data folder {path}: {error.strerror}") from None
