"""`TierMetadata` in files that people can read: `tier_metadata = json`.

`RAFT_GROUP-NUMBER.json` is the whole state in the form of a manifest, `RAFT_GROUP-NUMBER.changes`
holds later changes (docs/data-layout.md section 9). A change is durable before it is visible, so
the files are never behind the applied index of the row store. They may be ahead of it after a
crash; then a change that they already hold is recognised as a repeat.

Each change blocks for one fdatasync; changes are few. The state is in memory; no file stays open.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from strata_state.memory_store import MemoryStore
from strata_state.ports import Row, RowBatch
from strata_tier.base.errors import DamagedObjectError, TierError
from strata_tier.objects.layout import checksum
from strata_tier.objects.names import ManifestName
from strata_tier.objects.state import TierChange, decode_change, encode_change
from strata_tier.ranges.manifest import Manifest, decode_manifest, encode_manifest, manifest_of
from strata_tier.ranges.metadata import apply_change
from strata_tier.ranges.metadata_memory import MemoryTierMetadata
from strata_tier.ranges.metadata_rows import RowTierMetadata

_HEAD = struct.Struct(">QI")
_CHECKSUM = struct.Struct(">I")
_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{16})\.json")
_HOME = "local"


@dataclass(frozen=True, slots=True)
class JsonMetadataOptions:
    """Limits of the files.

    Attributes:
        changes_bytes: changes in a file before the whole state is written anew.
    """

    changes_bytes: int = 4 * 1024 * 1024


class JsonTierMetadata(MemoryTierMetadata):
    """The tier state of one raft group in files of its own; made by `open`.

    Attributes:
        applied_index: raft index of the last change that it holds.
    """

    def __init__(self, folder: Path, raft_group: int, options: JsonMetadataOptions) -> None:
        super().__init__(raft_group)
        self._folder = folder
        self._options = options
        self._number = 0
        self.applied_index = 0

    @classmethod
    def open(
        cls, folder: Path, raft_group: int, options: JsonMetadataOptions | None = None
    ) -> JsonTierMetadata:
        """Read what is there; nothing yet: begin.

        Raises:
            TierError: the files are damaged. A torn end of the changes, which a crash left and
                nobody was told of, is cut off instead.
            OSError: the folder cannot be read or written.
        """
        opened = cls(folder, raft_group, options or JsonMetadataOptions())
        folder.mkdir(parents=True, exist_ok=True)
        opened._read()
        return opened

    def apply(self, batch: RowBatch, change: TierChange, raft_index: int) -> None:
        """Take in a committed change, durably, unless it is here already.

        Raises:
            ChangeError: it contradicts the state, which is as it was.
            OSError: it could not be written; the state must not be used any more.
        """
        if raft_index <= self.applied_index:
            return
        apply_change(self, batch, change)
        self.applied_index = raft_index
        with self._path("changes").open("ab") as changes:
            changes.write(_framed(raft_index, encode_change(change)))
            _sync(changes)
            size_bytes = changes.tell()
        if size_bytes >= self._options.changes_bytes:
            self._begin_next()

    def replace(self, rows: Iterable[Row], raft_index: int) -> None:
        """Take in the state of a snapshot or a checkpoint, instead of what is here."""
        store = MemoryStore()
        batch = store.new_batch()
        for key, value in rows:
            batch.put(key, value)
        store.write(batch)
        copied = RowTierMetadata(store, self._raft_group)
        name = ManifestName(self._raft_group, 0, 0)
        self._load(manifest_of(copied, _HOME, name, raft_index, 0))
        self._begin_next()

    def _load(self, manifest: Manifest) -> None:
        loaded = manifest.metadata()
        self._queues, self._objects = loaded._queues, loaded._objects
        self._ranges = loaded._ranges
        self.applied_index = manifest.raft_index

    def _read(self) -> None:
        numbers = sorted(self._numbers())
        if not numbers:
            self._begin_next()
            return
        self._number = numbers[-1]
        path = self._path("json")
        try:
            self._load(decode_manifest(path.read_bytes(), path.name))
        except DamagedObjectError as error:
            raise TierError(f"tier metadata {path}: {error.reason}") from error
        # The crash may have come before the file of changes was made.
        with self._path("changes").open("a+b") as changes:
            changes.seek(0)
            end = 0
            batch = MemoryStore().new_batch()
            for raft_index, change, after in _framed_changes(changes.read()):
                apply_change(self, batch, decode_change(change))
                self.applied_index, end = raft_index, after
            changes.truncate(end)
        self._remove_others()

    def _begin_next(self) -> None:
        """Write the whole state under the next number; then the older files go."""
        self._number += 1
        name = ManifestName(self._raft_group, 0, self._number)
        data = encode_manifest(manifest_of(self, _HOME, name, self.applied_index, 0))
        unfinished = self._path("json.new")
        with unfinished.open("wb") as file:
            file.write(data)
            _sync(file)
        self._path("changes").write_bytes(b"")
        # The state counts once it has its name; its changes are there, empty, by then.
        unfinished.rename(self._path("json"))
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._remove_others()

    def _numbers(self) -> Iterator[int]:
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and int(match[1], 16) == self._raft_group:
                yield int(match[2], 16)

    def _remove_others(self) -> None:
        kept = {self._path(suffix).name for suffix in ("json", "changes")}
        for path in self._folder.glob(f"{self._raft_group:08x}-*"):
            if path.name not in kept:
                path.unlink()

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._raft_group:08x}-{self._number:016x}.{suffix}"


def _framed(raft_index: int, change: bytes) -> bytes:
    head = _HEAD.pack(raft_index, len(change))
    return head + _CHECKSUM.pack(checksum(head + change)) + change


def _framed_changes(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield (raft index, change, where it ends) up to the first one that is not whole."""
    at = 0
    start = _HEAD.size + _CHECKSUM.size
    while at + start <= len(data):
        raft_index, length = _HEAD.unpack_from(data, at)
        (expected,) = _CHECKSUM.unpack_from(data, at + _HEAD.size)
        change = data[at + start : at + start + length]
        if checksum(data[at : at + _HEAD.size] + change) != expected:
            return
        at += start + length
        yield raft_index, change, at


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fdatasync(file.fileno())
