"""The mark of a folder that is a store: a file that a missing mount does not have.

Its content is the store's name for itself, so that a mark in the empty folder below a mount point
is not taken for that of the mount. The content is the time of the file's making: nodes that find an
empty mark, just made or made by an older version, all write the same content, and need no lock for
that, which a mount may not have.

The mark is made only when nothing is known to be in the store (`known.KnownStore`). A store whose
mark is not known yet is recognised by any object that must be in it, for a mark of an older version
may also lie below a mount point.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from strata_runtime.files import sync_folder
from strata_tier.store.drivers.threads import Threads
from strata_tier.store.known import KnownStore
from strata_tier.store.ports import StoreMissingError, StoreUnavailableError

MARK = ".strata-store"
UPLOADS = ".uploads"

_MARK_BYTES = 200
_NOT_MOUNTED = "not mounted?"


class _Found(NamedTuple):
    """A look at a folder.

    Attributes:
        is_there: it is a store; False: nothing was ever put there.
        mark: its mark's content; empty: it has none.
    """

    is_there: bool
    mark: str


class PosixMark:
    """Tells whether a folder is the store that it was before.

    Args:
        root: the folder.
        store: name of the store, for errors.
        known: what is known of it from earlier.
        threads: do the blocking calls.
        must_exist: a folder without a mark is never made a store.
    """

    def __init__(
        self,
        root: Path,
        store: str,
        known: KnownStore,
        *,
        threads: Threads,
        must_exist: bool = False,
    ) -> None:
        self._root = root
        self._store = store
        self._known = known
        self._threads = threads
        self._must_exist = must_exist
        # A store was seen whose mark has no content; the next put gives it one.
        self._seen = False

    async def is_new(self) -> bool:
        """Whether nothing is known of the store, and it may be made.

        Raises:
            StoreUnavailableError: that cannot be told now.
        """
        return not (self._must_exist or self._known.mark or await self._keys())

    async def is_there(self, *, makes: bool) -> bool:
        """Find out whether this is the store that it was, as far as that is not known yet.

        Args:
            makes: something is to be put: a new store is made, a mark gets its content, and both
                are remembered before this returns.

        Returns:
            False: nothing was ever put here, and it is not to be made.

        Raises:
            StoreMissingError: objects are known and none of them is there, or there is no mark
                and must be one.
            StoreUnavailableError: what is known cannot be read or kept now.
            OSError: of the folder.
        """
        if self._known.mark or (self._seen and not makes):
            return True
        return await self.look(makes=makes)

    async def look(self, *, makes: bool = False) -> bool:
        """The same, whatever was seen before, for a store whose mark is not known."""
        keys = await self._keys()
        found = await self._threads.run(partial(_look, self._root, keys))
        if found is None:
            raise StoreMissingError(
                self._store,
                "",
                f"{MARK} is missing or of an older version, and none of {len(keys)} objects that "
                f"must be there is: {_NOT_MOUNTED}",
            )
        if self._must_exist and not found.is_there:
            reason = f"{MARK} is missing, and the URL says that the store exists: {_NOT_MOUNTED}"
            raise StoreMissingError(self._store, "", reason)
        mark = found.mark
        if makes and not mark:
            mark = await self._threads.run(partial(_make, self._root))
        if mark:
            await self._remember(mark)
        self._seen = found.is_there
        return found.is_there or makes

    def check(self) -> None:
        """Compare the mark with the one that is known. Blocks.

        Raises:
            StoreMissingError: it is another store's, or one of an older version.
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        mark, known = _read(self._root), self._known.mark
        if mark is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._root / MARK))
        if known and mark != known:
            # Not retried at once: a mount comes back, or an operator says what holds.
            reason = f"{MARK} says {mark!r}, the store of this node has {known!r}: {_NOT_MOUNTED}"
            raise StoreMissingError(self._store, "", reason)

    @property
    def is_known(self) -> bool:
        """Whether `check` compares."""
        return bool(self._known.mark)

    async def _keys(self) -> Sequence[str]:
        try:
            return await self._known.keys()
        except OSError as error:
            raise StoreUnavailableError(
                self._store, "", f"the objects that must be there cannot be told: {error}"
            ) from error

    async def _remember(self, mark: str) -> None:
        try:
            await self._known.remember(mark)
        except OSError as error:
            # An error of the node's own disk: none of the store's kinds.
            raise StoreUnavailableError(
                self._store, "", f"the store's mark cannot be kept: {error}"
            ) from error


def _look(root: Path, keys: Sequence[str]) -> _Found | None:
    """Return what is there; None: something must be there and is not."""
    mark = _read(root)
    if mark:
        # Made by a node that knew what it did, or by an operator who says that this is the store.
        return _Found(True, mark)
    if not keys:
        return _Found(mark is not None, "")
    if any((root / key).exists() for key in keys):
        return _Found(True, "")
    return None


def _read(root: Path) -> str | None:
    """Return the mark's content; None: there is no mark."""
    try:
        descriptor = os.open(root / MARK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _content(descriptor)
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> str:
    return os.read(descriptor, _MARK_BYTES).decode(errors="replace").strip()


def _make(root: Path) -> str:
    """Make a store of a folder, unless it is one; return its mark's content."""
    root.mkdir(exist_ok=True)
    (root / UPLOADS).mkdir(exist_ok=True)
    descriptor = os.open(root / MARK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if mark := _content(descriptor):
            return mark
        mark = f"{os.fstat(descriptor).st_mtime_ns:016x}"
    finally:
        os.close(descriptor)
    draft = root / UPLOADS / uuid.uuid4().hex
    with draft.open("wb") as file:
        file.write(f"{mark}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(root / MARK)
    sync_folder(root)
    sync_folder(root.parent)
    return mark
