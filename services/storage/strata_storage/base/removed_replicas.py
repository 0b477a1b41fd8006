"""Replicas that were removed here, kept in files of their own for a while (rule 32).

    storage/removed/REPLICA_ID/replica.json   what it was, and who wanted it gone
    storage/removed/REPLICA_ID/log/           second names of the segments that it is in

A segment costs no space here until the log frees it. A folder counts once it has its name without
`.new`; a folder that was unfinished at a power loss is deleted at the next look. Everything here
blocks: it runs in a thread.

Each look deletes, oldest first, the replicas older than the retention, those above the limit in
bytes (the newest stays, however large), and one replica while the disk is at one of its marks. The
last two delete only what gives the disk something back: a replica whose segments the log still has
costs nothing. A folder with a damaged note is deleted at the same age, by its modification time.

The note of a replica that was taken back has no age: without it the row that once let the replica
go would remove it again. It goes when the replica ends again, or has left the log.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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


class DamagedNoteError(RemovedReplicaError):
    """The note of a removed replica is gone, or not what was written: no later read helps."""


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


@dataclass(slots=True)
class _Segment:
    """A segment that replicas here hold.

    Attributes:
        size_bytes: its length.
        links: names that it has, here and elsewhere.
        holders: the replicas, the oldest first.
    """

    size_bytes: int
    links: int
    holders: list[int] = field(default_factory=list)


class RemovedReplicas:
    """See the module docstring.

    Args:
        folder: `storage/removed`.
        log_folder: of the CommitLog, on the same file system.
        options: limits.

    Attributes:
        count: replicas that may be taken back, as of the last look.
        held_bytes: of segments that only stand here, as of the last look.
    """

    def __init__(self, folder: Path, log_folder: Path, options: AsideOptions) -> None:
        self.folder = folder
        self._log_folder = log_folder
        self._options = options
        self.count = 0
        self.held_bytes = 0
        # Folders that are being filled: `put` and `clean` run in different threads.
        self._unfinished: set[Path] = set()
        self._unfinished_lock = threading.Lock()
        # Why the note of a folder cannot be read, as it was logged.
        self._unread: dict[Path, str] = {}
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
        with self._filling(new):
            shutil.rmtree(new, ignore_errors=True)
            (new / _LOG).mkdir(parents=True)
            for name in segments:
                _second_name(self._log_folder / name, new / _LOG / name)
            sync_folder(new / _LOG)
            _write_note(new, replica)
            shutil.rmtree(path, ignore_errors=True)
            new.rename(path)
            sync_folder(self.folder)
        self.count = _count(self.listed())

    @contextmanager
    def _filling(self, folder: Path) -> Iterator[None]:
        """Keep an unfinished folder from being taken for what a power loss left."""
        with self._unfinished_lock:
            self._unfinished.add(folder)
        try:
            yield
        finally:
            with self._unfinished_lock:
                self._unfinished.discard(folder)

    def _delete_leftovers(self) -> None:
        for path in self._folders(unfinished=True):
            with self._unfinished_lock:
                if path not in self._unfinished:
                    shutil.rmtree(path, ignore_errors=True)

    def path(self, replica_id: int) -> Path:
        """Return the folder of a replica."""
        return self.folder / str(replica_id)

    def log_of(self, replica_id: int) -> Path:
        """Return the folder with the segments of a replica."""
        return self.path(replica_id) / _LOG

    def listed(self) -> list[RemovedReplica]:
        """Return what is here, the oldest first; what cannot be read is logged and left out."""
        return self._look()[0]

    def _look(self) -> tuple[list[RemovedReplica], list[Path]]:
        """Return what is here, the oldest first, and the folders with a damaged note."""
        found, damaged, unread = list[RemovedReplica](), list[Path](), dict[Path, str]()
        for path in self._folders():
            try:
                found.append(read_note(path))
            except RemovedReplicaError as error:
                unread[path] = str(error)
                if isinstance(error, DamagedNoteError):
                    damaged.append(path)
        for path, reason in unread.items():
            if self._unread.get(path) != reason:
                self._logger.warning("a removed replica cannot be read", reason=reason)
        self._unread = unread
        return sorted(found, key=lambda each: (each.removed_at_ms, each.replica_id)), damaged

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

    def clean(
        self,
        now_ms: int,
        *,
        disk_is_low: bool,
        is_in_log: Callable[[int], bool] = lambda replica_id: True,
    ) -> list[RemovedReplica]:
        """Delete what is too old or too much; return what was deleted.

        Args:
            now_ms: wall time.
            disk_is_low: room is short: one more goes, if that makes room.
            is_in_log: whether the log has a replica that did not end.
        """
        self._delete_leftovers()
        kept, damaged = self._look()
        retention_ms = self._options.retention_ms
        for path in damaged:
            if now_ms - path.stat().st_mtime_ns // 1_000_000 >= retention_ms:
                shutil.rmtree(path, ignore_errors=True)
        gone = [
            each
            for each in kept
            if not each.is_back and now_ms - each.removed_at_ms >= retention_ms
        ]
        with_files = [each for each in kept if not each.is_back and each not in gone]
        gone += self._excess(with_files, disk_is_low=disk_is_low)
        gone += [
            each
            for each in kept
            # The log is asked first, for `put` may replace the note before the replica ends.
            if each.is_back and not is_in_log(each.replica_id) and self._is_back(each.replica_id)
        ]
        for each in gone:
            shutil.rmtree(self.path(each.replica_id), ignore_errors=True)
        left = self.listed()
        self.count, self.held_bytes = _count(left), _only_here_bytes(self._segments(left))
        return gone

    def _is_back(self, replica_id: int) -> bool:
        """Whether the note of a replica says now that it was taken back."""
        try:
            return read_note(self.path(replica_id)).is_back
        except RemovedReplicaError:
            return False

    def _excess(
        self, replicas: Sequence[RemovedReplica], *, disk_is_low: bool
    ) -> list[RemovedReplica]:
        """Return those that are too much, as far as their end gives the disk something back."""
        left, gone = list(replicas), list[RemovedReplica]()
        segments = self._segments(left)
        while disk_is_low or _only_here_bytes(segments) > self._options.max_bytes:
            # The limit never takes the newest.
            end = _first_to_free(segments, left if disk_is_low else left[:-1])
            if not end:
                break
            # One at a look: what it frees shows at the next one.
            disk_is_low = False
            gone += [each for each in left if each.replica_id in end]
            left = [each for each in left if each.replica_id not in end]
            segments = _without(segments, end)
        return gone

    def _segments(self, replicas: Sequence[RemovedReplica]) -> list[_Segment]:
        """Return the segments that replicas hold; a copy instead of a link is one of its own."""
        found: dict[int, _Segment] = {}
        for each in replicas:
            for file in _files(self.log_of(each.replica_id)):
                stat = file.stat()
                segment = found.setdefault(stat.st_ino, _Segment(stat.st_size, stat.st_nlink))
                segment.holders.append(each.replica_id)
        return list(found.values())

    def _folders(self, *, unfinished: bool = False) -> Iterator[Path]:
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if path.is_dir() and path.name.endswith(_UNFINISHED) is unfinished:
                yield path


def read_note(path: Path) -> RemovedReplica:
    """Return what a replica's folder says it is.

    Raises:
        DamagedNoteError: it is not there, or its bytes are damaged.
        RemovedReplicaError: it cannot be read, or is of another version.
    """
    file = path / _NOTE
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        if note["crc32c"] != _crc(note["replica"]):
            raise DamagedNoteError(f"{file} is damaged: its checksum is another one")
        if note["replica"]["version"] != FORMAT_VERSION:
            raise RemovedReplicaError(f"{file}: version {note['replica']['version']} is not known")
        return RemovedReplica(**note["replica"])
    except FileNotFoundError as error:
        raise DamagedNoteError(f"{file}: {error.strerror}") from None
    except OSError as error:
        raise RemovedReplicaError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedNoteError(f"{file} is damaged: {error}") from None


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


def _count(replicas: Sequence[RemovedReplica]) -> int:
    return sum(not each.is_back for each in replicas)


def _only_here_bytes(segments: Sequence[_Segment]) -> int:
    """Return the bytes of segments that have no name elsewhere: in the log, or unread here."""
    return sum(each.size_bytes for each in segments if len(each.holders) == each.links)


def _first_to_free(
    segments: Sequence[_Segment], replicas: Sequence[RemovedReplica]
) -> Collection[int]:
    """Return the oldest replica whose end frees a segment, with the older ones that hold it, too.

    Empty: the end of these replicas frees nothing.
    """
    only_here = [each for each in segments if len(each.holders) == each.links]
    for replica in replicas:
        # Those after the last holder have it no more: it is the last link.
        freed = [each for each in only_here if each.holders[-1] == replica.replica_id]
        if freed:
            return {holder for each in freed for holder in each.holders}
    return ()


def _without(segments: Sequence[_Segment], gone: Collection[int]) -> list[_Segment]:
    """Return the segments that are left when replicas end."""
    left = []
    for each in segments:
        holders = [holder for holder in each.holders if holder not in gone]
        if holders:
            links = each.links - len(each.holders) + len(holders)
            left.append(_Segment(each.size_bytes, links, holders))
    return left
