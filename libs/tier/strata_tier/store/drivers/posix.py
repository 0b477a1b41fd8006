"""Objects as files under one folder: a disk, an NFS or any other mount.

A put writes a temporary file, syncs it, renames it into place and syncs every folder that got a new
name. A long body is written and synced part by part while the next parts are being made.

The folder carries a mark, made by the first put (`posix_mark`); a folder without the mark that is
known raises `StoreMissingError`: a lost mount is not an empty store, also for a node that starts
while it is lost.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from strata_runtime.files import sync_folder
from strata_runtime.timeouts import Timeout
from strata_tier.store.drivers.bodies import Part, parts_in
from strata_tier.store.drivers.listing import FolderEntry, listing
from strata_tier.store.drivers.posix_mark import MARK, UPLOADS, PosixMark
from strata_tier.store.drivers.sending import send_parts
from strata_tier.store.drivers.threads import Threads
from strata_tier.store.known import KnownStore, NothingKnown
from strata_tier.store.ports import (
    Body,
    ObjectExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectPage,
    ObjectTooShortError,
    RefusedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    check_key,
)
from strata_tier.store.retrying import RequestGate, StoreOperation

Result = TypeVar("Result")

__all__ = ["MARK", "UPLOADS", "PosixStore"]

# Time that the removal of a file of no use gets, beside that of one request.
_REMOVAL_S = 5.0

_ERRORS: dict[int | None, type[StoreError]] = {
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EACCES: RefusedError,
    errno.EPERM: RefusedError,
    errno.EROFS: RefusedError,
    errno.ETIMEDOUT: StoreTimeoutError,
}


class PosixStore:
    """An `ObjectStore` in a folder. Made by `open`.

    Args:
        root: the folder.
        gate: what requests pass.
        threads: do the blocking calls.
        mark: tells whether the folder is the store.
    """

    def __init__(self, root: Path, gate: RequestGate, *, threads: Threads, mark: PosixMark) -> None:
        self._root = root
        self._gate = gate
        self._threads = threads
        self._mark = mark

    @classmethod
    async def open(
        cls,
        root: Path,
        gate: RequestGate,
        known: KnownStore | None = None,
        *,
        must_exist: bool = False,
    ) -> PosixStore:
        """Open a folder.

        If nothing is known of the store, the folder is made; its parent must be there. A store of
        which something is known is not looked at: it may be seen later.

        Args:
            root: the folder.
            gate: what requests pass.
            known: what is known of the store from earlier; None: nothing.
            must_exist: a folder without a mark is never made a store.

        Raises:
            StoreError: a folder of which nothing is known cannot be used.
        """
        threads = Threads("tier-posix", gate.options.max_requests_in_flight)
        mark = PosixMark(
            root, gate.store, known or NothingKnown(), threads=threads, must_exist=must_exist
        )
        store = cls(root, gate, threads=threads, mark=mark)
        try:
            async with Timeout(gate.options.timeout_s(0)):
                if await mark.is_new():
                    make = partial(threads.run, partial(root.mkdir, exist_ok=True))
                    await store._translated("", make)
        except TimeoutError:
            await store.close()
            raise StoreTimeoutError(gate.store, "", "the folder does not answer") from None
        except StoreError:
            await store.close()
            raise
        return store

    @property
    def name(self) -> str:
        """The store's URL."""
        return self._gate.store

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        """Store an object; see the port."""
        check_key(key)
        return await self._gate.repeat(
            StoreOperation.PUT, lambda: self._put_once(key, body, size_bytes, if_absent)
        )

    async def _put_once(
        self, key: str, body: Body, size_bytes: int | None, if_absent: bool
    ) -> ObjectInfo:
        temporary = self._root / UPLOADS / uuid.uuid4().hex
        options = self._gate.options

        async def send(number: int, position: int, part: Part) -> None:
            # The last part, and with it a short body, is synced with the file's length.
            is_long = part.size_bytes == options.part_bytes
            write = partial(_write, temporary, position, part, is_long)
            await self._gate.once(
                StoreOperation.PUT_PART,
                key,
                partial(self._do, "", write),
                upload_bytes=part.size_bytes,
            )

        try:
            create = partial(self._do, "", partial(_create, self._mark, temporary))
            await self._gate.once(StoreOperation.BEGIN_UPLOAD, key, create)
            parts = parts_in(body, options.part_bytes, size_bytes)
            size = await send_parts(parts, send, options.parts_in_flight)
            finish = partial(_finish, self._root, temporary, key, if_absent)
            modified_ms = await self._gate.once(
                StoreOperation.PUT, key, partial(self._do, "", finish)
            )
        except BaseException:
            await self._remove(temporary)
            raise
        return ObjectInfo(key, size, modified_ms)

    async def _remove(self, temporary: Path) -> None:
        """Remove a file of no use, if that is soon done: `remove_leftovers` finds the rest.

        A mount that hangs holds the thread until its server is back, but not the put: its caller
        would neither hear of the failure nor could give up.
        """
        with suppress(TimeoutError):
            async with Timeout(min(_REMOVAL_S, self._gate.options.timeout_s(0))):
                await self._threads.run(partial(_remove_quietly, temporary))

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Read an object; see the port."""
        check_key(key)

        def read() -> bytes:
            content, size = _read(self._root / key, position, length)
            end = size if length is None else position + length
            if len(content) != end - position:
                raise ObjectTooShortError(self.name, key, f"ends at {size}, not {end}")
            return content

        announced = length or 0
        do = partial(self._do, key, read, if_new=partial(self._absent, key))
        body = await self._gate.run(StoreOperation.GET, key, do, download_bytes=announced)
        await self._gate.received(len(body), announced)
        return body

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object; see the port."""
        check_key(key)

        def describe() -> ObjectInfo:
            status = (self._root / key).stat()
            return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

        do = partial(self._do, key, describe, if_new=partial(self._absent, key))
        return await self._gate.run(StoreOperation.HEAD, key, do)

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects; see the port."""

        def page() -> ObjectPage:
            self._mark.check()
            steps = listing(prefix, after, limit)
            folder = next(steps)
            while True:
                try:
                    folder = steps.send(_children(self._root / folder))
                except StopIteration as end:
                    return cast("ObjectPage", end.value)

        do = partial(self._do, "", page, if_new=lambda: ObjectPage((), None))
        return await self._gate.run(StoreOperation.LIST, "", do)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; see the port. Their folders stay."""
        for key in keys:
            check_key(key)

        def remove() -> None:
            self._mark.check()
            for key in keys:
                (self._root / key).unlink(missing_ok=True)

        do = partial(self._do, "", remove, if_new=lambda: None)
        await self._gate.run(StoreOperation.DELETE, "", do)

    async def remove_leftovers(self, before_ms: int) -> int:
        """Remove temporary files; see the port."""

        def remove() -> int:
            self._mark.check()
            return _remove_temporaries(self._root, before_ms)

        do = partial(self._do, "", remove, if_new=lambda: 0)
        return await self._gate.run(StoreOperation.ABORT_UPLOAD, "", do)

    async def close(self) -> None:
        """End the threads."""
        self._gate.close()
        await self._threads.close()

    async def _do(
        self, key: str, work: Callable[[], Result], *, if_new: Callable[[], Result] | None = None
    ) -> Result:
        """Do blocking work in a thread, its `OSError` as a `StoreError`.

        Args:
            key: the object it is about.
            work: what blocks.
            if_new: gives the result for a store that nothing was ever put into; None: the work
                puts, so such a store is made.
        """

        async def do() -> Result:
            if await self._mark.is_there(makes=if_new is None) or if_new is None:
                return await self._threads.run(work)
            return if_new()

        return await self._translated(key, do)

    async def _translated(self, key: str, call: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await call()
        except FileExistsError as error:
            raise ObjectExistsError(self.name, key, "exists") from error
        except FileNotFoundError as error:
            raise await self._not_there(error, key) from error
        except OSError as error:
            kind = _ERRORS.get(error.errno, StoreUnavailableError)
            raise kind(self.name, key, _reason(error)) from error

    async def _not_there(self, error: FileNotFoundError, key: str) -> StoreError:
        """Return what it means that a file is not there."""
        try:
            if self._mark.is_known:
                await self._threads.run(self._mark.check)
                is_there = True
            else:
                is_there = await self._mark.look()
        except StoreError as failure:
            return failure
        except OSError:
            is_there = False
        if not is_there:
            return StoreMissingError(self.name, "", f"{MARK} is missing: not mounted?")
        if key:
            return ObjectNotFoundError(self.name, key, "not found")
        return StoreMissingError(self.name, "", _reason(error))

    def _absent(self, key: str) -> NoReturn:
        raise ObjectNotFoundError(self.name, key, "not found: nothing was ever put here")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _create(mark: PosixMark, temporary: Path) -> None:
    # Nothing may be put below a mount point. Once is enough: the file is renamed, not copied.
    mark.check()
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _write(temporary: Path, position: int, part: Part, sync: bool) -> None:
    # Not made here: a write that nobody waits for any more must not bring the file back.
    descriptor = os.open(temporary, os.O_WRONLY)
    try:
        for buffer in part.buffers:
            view = memoryview(buffer)
            while view:
                written = os.pwrite(descriptor, view, position)
                position, view = position + written, view[written:]
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _finish(root: Path, temporary: Path, key: str, if_absent: bool) -> int:
    """Make a written file durable under its name; return its time in Unix milliseconds."""
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        os.fsync(descriptor)
        modified_ms = os.fstat(descriptor).st_mtime_ns // 1_000_000
    finally:
        os.close(descriptor)
    target = root / key
    target.parent.mkdir(parents=True, exist_ok=True)
    if if_absent:
        os.link(temporary, target)
        temporary.unlink()
    else:
        temporary.replace(target)
    # Any folder up to the root may be new, made here or by another put that has not synced yet.
    for folder in target.parents:
        sync_folder(folder)
        if folder == root:
            break
    return modified_ms


def _read(path: Path, position: int, length: int | None) -> tuple[bytes, int]:
    """Return the bytes, fewer only at the end of the file, and the file's length."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        wanted = max(0, (size if length is None else min(size, position + length)) - position)
        pieces: list[bytes] = []
        while wanted:
            piece = os.pread(descriptor, wanted, position)
            if not piece:
                break
            pieces.append(piece)
            position, wanted = position + len(piece), wanted - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), size
    finally:
        os.close(descriptor)


def _children(folder: Path) -> list[FolderEntry]:
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # Deleted meanwhile.
            if entry.is_dir():
                entries.append(FolderEntry(entry.name, None, 0))
            else:
                modified_ms = status.st_mtime_ns // 1_000_000
                entries.append(FolderEntry(entry.name, status.st_size, modified_ms))
    return entries


def _remove_temporaries(root: Path, before_ms: int) -> int:
    removed = 0
    for path in (root / UPLOADS).iterdir():
        if path.stat().st_mtime_ns // 1_000_000 < before_ms:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _remove_quietly(path: Path) -> None:
    """Remove what may be gone, in a folder that may be: `remove_leftovers` finds the rest."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
