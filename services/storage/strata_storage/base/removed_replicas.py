"""Replicas that were removed here, kept in files of their own for a while (rule 32).

    storage/removed/REPLICA_ID/replica.json   what it was, and who wanted it gone
    storage/removed/REPLICA_ID/log/           second names of the segments that it is in

A segment costs no space here until the log frees it. A folder counts once it has its name without
`.new`; a folder that was unfinished at a power loss is deleted at the next look. Everything here
blocks: it runs in a thread.

Each look deletes, oldest first, the replicas older than the retention, those above the limit in
bytes (the newest stays, however large), and one replica while the disk is at one of its marks.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import google_crc32c

from strata_runtime.files import replace_file, sync_folder
from strata_runtime.logs import get_logger

FORMAT_VERSION = 1

_NOTE = "replica.json"
_LOG = "log"
_UNFINISHED = ".new"
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


class RemovedReplicaError(Exception):
    """A removed replica cannot be used; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class RemovedReplica:
    """One replica that was put aside.

    Attributes:
        replica_id, raft_group: what it was.
        cluster_id: of the nameservers on whose word it was removed.
        revision: of the raft group's metadata row that let it go; 0: there was none.
        removed_at_ms: wall time.
        first_index, last_index: its entries.
        term, vote, commit: its last hard state.
        is_back: it was taken back; only a newer row may remove it again.
        version: of this format.
    """

    replica_id: int
    raft_group: int
    cluster_id: str
    revision: int
    removed_at_ms: int
    first_index: int
    last_index: int
    term: int
    vote: int
    commit: int
    is_back: bool = False
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class AsideOptions:
    """How long and how much is kept.

    Attributes:
        retention_ms: age at which a replica is deleted.
        max_bytes: of segments that only stand here, all replicas together.
    """

    retention_ms: int = 7 * 86_400_000
    max_bytes: int = 64 * 1024**3


class RemovedReplicas:
    """See the module docstring.

    Args:
        folder: `storage/removed`.
        log_folder: of the CommitLog, on the same file system.
        options: limits.

    Attributes:
        count: replicas here, as of the last look.
        held_bytes: of segments that only stand here, as of the last look.
    """

    def __init__(self, folder: Path, log_folder: Path, options: AsideOptions) -> None:
        self.folder = folder
        self._log_folder = log_folder
        self._options = options
        self.count = 0
        self.held_bytes = 0
        self._logger = get_logger("storage")

    def put(self, replica: RemovedReplica, segments: Sequence[str]) -> None:
        """Put a replica aside, durably; one of the same id that is here is replaced.

        Args:
            replica: what it was.
            segments: names of the sealed segments that it is in.

        Raises:
            OSError: the file system took it not.
        """
        path = self.path(replica.replica_id)
        new = path.with_name(path.name + _UNFINISHED)
        shutil.rmtree(new, ignore_errors=True)
        (new / _LOG).mkdir(parents=True)
        for name in segments:
            _second_name(self._log_folder / name, new / _LOG / name)
        sync_folder(new / _LOG)
        _write_note(new, replica)
        shutil.rmtree(path, ignore_errors=True)
        new.rename(path)
        sync_folder(self.folder)
        self.count = len(self.listed())

    def path(self, replica_id: int) -> Path:
        """Return the folder of a replica."""
        return self.folder / str(replica_id)

    def log_of(self, replica_id: int) -> Path:
        """Return the folder with the segments of a replica."""
        return self.path(replica_id) / _LOG

    def listed(self) -> list[RemovedReplica]:
        """Return what is here, the oldest first; what cannot be read is left out."""
        found = []
        for path in self._folders():
            try:
                found.append(read_note(path))
            except RemovedReplicaError as error:
                self._logger.warning("a removed replica cannot be read", reason=str(error))
        return sorted(found, key=lambda each: (each.removed_at_ms, each.replica_id))

    def taken_back(self) -> dict[int, int]:
        """Return by replica id the revision above which a row may remove it again."""
        return {each.replica_id: each.revision for each in self.listed() if each.is_back}

    def is_taken_back(self, replica: RemovedReplica) -> None:
        """Note, durably, that a replica is back in the log; its files here go.

        Raises:
            OSError: it could not be written.
        """
        path = self.path(replica.replica_id)
        _write_note(path, replace(replica, is_back=True))
        shutil.rmtree(path / _LOG, ignore_errors=True)

    def clean(self, now_ms: int, *, disk_is_low: bool) -> list[RemovedReplica]:
        """Delete what is too old or too much; return what was deleted."""
        for path in self._folders(unfinished=True):
            shutil.rmtree(path, ignore_errors=True)
        kept = self.listed()
        gone = [each for each in kept if now_ms - each.removed_at_ms >= self._options.retention_ms]
        kept = [each for each in kept if each not in gone]
        held = self._held_by(kept)
        total = sum(held.values())
        with_files = [each for each in kept if not each.is_back]
        while with_files and (
            disk_is_low or (len(with_files) > 1 and total > self._options.max_bytes)
        ):
            oldest = with_files.pop(0)
            gone.append(oldest)
            total -= held[oldest.replica_id]
            # One at a look: what it frees shows at the next one.
            disk_is_low = False
        for each in gone:
            shutil.rmtree(self.path(each.replica_id), ignore_errors=True)
        self.count, self.held_bytes = len(self.listed()), total
        return gone

    def _held_by(self, replicas: Sequence[RemovedReplica]) -> Mapping[int, int]:
        """Return the bytes that the file system gets back when a replica goes after those before.

        A segment that the log still has counts for nobody, one of several replicas for the newest.
        """
        held = dict.fromkeys((each.replica_id for each in replicas), 0)
        seen: dict[int, tuple[int, int, int, int]] = {}
        for each in replicas:
            for file in _files(self.log_of(each.replica_id)):
                found = file.stat()
                names = seen.get(found.st_ino, (0, 0, 0, 0))[0] + 1
                seen[found.st_ino] = names, found.st_nlink, found.st_size, each.replica_id
        for names, links, size_bytes, newest in seen.values():
            if names == links:
                held[newest] += size_bytes
        return held

    def _folders(self, *, unfinished: bool = False) -> Iterator[Path]:
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if path.is_dir() and path.name.endswith(_UNFINISHED) is unfinished:
                yield path


def read_note(path: Path) -> RemovedReplica:
    """Return what a replica's folder says it is.

    Raises:
        RemovedReplicaError: it cannot be read, or is damaged, or of another version.
    """
    file = path / _NOTE
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        if note["crc32c"] != _crc(note["replica"]):
            raise RemovedReplicaError(f"{file} is damaged: its checksum is another one")
        if note["replica"]["version"] != FORMAT_VERSION:
            raise RemovedReplicaError(f"{file}: version {note['replica']['version']} is not known")
        return RemovedReplica(**note["replica"])
    except OSError as error:
        raise RemovedReplicaError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RemovedReplicaError(f"{file} is damaged: {error}") from None


def _write_note(path: Path, replica: RemovedReplica) -> None:
    """Write the note of a folder; it and what else is in the folder are durable then."""
    values = asdict(replica)
    text = json.dumps({"crc32c": _crc(values), "replica": values}, indent=1)
    replace_file(path / _NOTE, f"{text}\n".encode())


def _crc(values: Mapping[str, object]) -> str:
    text = json.dumps(values, sort_keys=True)
    return f"{google_crc32c.value(text.encode()):08x}"


def _second_name(source: Path, target: Path) -> None:
    """Give a file another name; where the file system cannot, copy it."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as from_file, target.open("wb") as to_file:
            shutil.copyfileobj(from_file, to_file)
            to_file.flush()
            os.fsync(to_file.fileno())


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
