"""Objects as files in HDFS, through hdfs-native: its RPC without a JVM.

A put writes a temporary file, syncs and closes it and renames it into place, which HDFS does as one
step. Reads check HDFS's own checksums in the library. HDFS accepts only a few small files per
second, so objects stored here should be few and large.

A NameNode in safe mode, a NameNode that is down and too few DataNodes are all "unavailable". The
library's asyncio client is used: a call of the blocking client to a NameNode that hangs never ends,
nor does its thread. The client must not retry by itself, because it panics when it wants to wait
(0.14.7); so the gate retries, and after each failure the next NameNode is used. A read that is
given up ends at once, however slowly the store sends: no thread waits for it.

The first put makes the folder, if nothing is known to be in it (`known.KnownStore`): in another
HDFS, or in one that was formatted, the objects of this cluster are missing, not deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from hdfs_native import AsyncClient, AsyncFileWriter, WriteOptions

from strata_tier.store.drivers.bodies import Part, parts_in
from strata_tier.store.drivers.hdfs_clients import kept_client
from strata_tier.store.drivers.listing import FolderEntry, listing
from strata_tier.store.drivers.sending import send_parts
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

UPLOADS = ".uploads"

# Remembered of a store: that its folder was there. HDFS is never below a mount point.
_SEEN = "seen"

_PIECE_BYTES = 256 * 1024

# Names of Hadoop's exceptions, which stand in the text of the library's errors.
_REASONS: tuple[tuple[str, type[StoreError]], ...] = (
    ("QuotaExceededException", StoreFullError),
    ("DSQuotaExceeded", StoreFullError),
    ("AccessControlException", RefusedError),
    ("SaslException", RefusedError),
    ("InvalidToken", RefusedError),
)


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """Where the objects are.

    Attributes:
        name_nodes: `HOST:PORT` of each; any of them may be the active one.
        root: absolute path of the folder.
        config_folder: folder with core-site.xml and hdfs-site.xml; None: HADOOP_CONF_DIR, if set.
        replication: copies of each block; None: the cluster's default.
        must_exist: the folder is never made.
    """

    name_nodes: tuple[str, ...]
    root: str
    config_folder: str | None = None
    replication: int | None = None
    must_exist: bool = False


class HdfsStore:
    """An `ObjectStore` in HDFS. Made by `open`.

    Args:
        clients: of the NameNodes.
        location: the folder.
        gate: what requests pass.
        known: what is known of the store from earlier.
    """

    def __init__(
        self,
        clients: Sequence[AsyncClient],
        location: HdfsLocation,
        gate: RequestGate,
        *,
        known: KnownStore,
    ) -> None:
        self._clients = clients
        self._active = 0
        self._root = location.root.rstrip("/")
        self._written = WriteOptions(
            replication=location.replication, overwrite=True, create_parent=False
        )
        self._gate = gate
        self._known = known
        self._must_exist = location.must_exist
        self._root_seen = False

    @classmethod
    async def open(
        cls, location: HdfsLocation, gate: RequestGate, known: KnownStore | None = None
    ) -> HdfsStore:
        """Make a store; no request is sent yet.

        Args:
            location: the folder.
            gate: what requests pass.
            known: what is known of the store from earlier; None: nothing.
        """
        timeout_ms = gate.options.request_timeout_ms
        clients = [
            kept_client(address, timeout_ms, location.config_folder)
            for address in location.name_nodes
        ]
        return cls(clients, location, gate, known=known or NothingKnown())

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
        uploads = f"{self._root}/{UPLOADS}"
        if not self._root_seen:
            await self._step(StoreOperation.HEAD, "", partial(self._make_root, uploads))
            self._root_seen = True
        temporary = f"{uploads}/{uuid.uuid4().hex}"
        # A missing folder from here on is a store that somebody removed: hence no key.
        writer = await self._step(
            StoreOperation.BEGIN_UPLOAD, "", lambda: self._client.create(temporary, self._written)
        )

        async def send(number: int, position: int, part: Part) -> None:
            write = partial(_write, writer, part)
            await self._step(StoreOperation.PUT_PART, "", write, part.size_bytes)

        try:
            # One at a time: the library appends.
            await send_parts(parts_in(body, self._gate.options.part_bytes, size_bytes), send, 1)
            await self._step(StoreOperation.END_UPLOAD, "", writer.hsync)
            await self._step(StoreOperation.END_UPLOAD, "", writer.close)
            await self._rename(temporary, key, replace=not if_absent)
        except BaseException:
            await self._remove_quietly(temporary)
            raise
        return await self._step(StoreOperation.HEAD, key, partial(self._info, key))

    async def _make_root(self, uploads: str) -> None:
        """Make the folders, unless the store is known: then its folder must be there."""
        if self._must_exist or self._known.mark or await self._known.keys():
            await self._check_root()
        await self._client.mkdirs(uploads, create_parent=True)
        if not self._known.mark:
            await self._known.remember(_SEEN)

    async def _rename(self, temporary: str, key: str, *, replace: bool) -> None:
        target = self._path(key)

        async def rename() -> None:
            await self._client.rename(temporary, target, replace)

        try:
            await self._step(StoreOperation.PUT, key, rename)
        except ObjectNotFoundError:
            folder = target.rpartition("/")[0]
            await self._step(
                StoreOperation.PUT, "", lambda: self._client.mkdirs(folder, create_parent=True)
            )
            await self._step(StoreOperation.PUT, "", rename)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Read an object; see the port."""
        check_key(key)

        async def read() -> bytes:
            reader = await self._client.read(self._path(key))
            size = len(reader)
            end = size if length is None else position + length
            if max(position, end) > size:
                raise ObjectTooShortError(self.name, key, f"ends at {size}, not {end}")
            if end == position:
                return b""
            content = await reader.read_range(position, end - position)
            if len(content) != end - position:
                raise StoreUnavailableError(self.name, key, f"{len(content)} bytes came")
            return content

        announced = length or 0
        body = await self._gate.run(
            StoreOperation.GET, key, partial(self._do, key, read), download_bytes=announced
        )
        await self._gate.received(len(body), announced)
        return body

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object; see the port."""
        check_key(key)
        return await self._gate.run(
            StoreOperation.HEAD, key, partial(self._do, key, partial(self._info, key))
        )

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects; see the port."""
        steps = listing(prefix, after, limit)
        folder = next(steps)
        while True:
            read = partial(self._children, folder)
            entries = await self._gate.run(StoreOperation.LIST, "", partial(self._do, "", read))
            try:
                folder = steps.send(entries)
            except StopIteration as end:
                return cast("ObjectPage", end.value)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; see the port. Their folders stay."""
        for key in keys:
            check_key(key)
        if not keys:
            return
        # Deleting says False for what is not there, also when all is gone: that is an error.
        await self._gate.run(StoreOperation.HEAD, "", partial(self._do, "", self._check_root))
        for key in keys:
            remove = partial(self._delete, self._path(key))
            await self._gate.run(StoreOperation.DELETE, key, partial(self._do, key, remove))

    async def remove_leftovers(self, before_ms: int) -> int:
        """Remove temporary files; see the port."""
        folder = f"{UPLOADS}/"
        read = partial(self._children, folder)
        entries = await self._gate.run(StoreOperation.LIST, "", partial(self._do, "", read))
        stale = [entry.name for entry in entries if entry.modified_ms < before_ms]
        for name in stale:
            remove = partial(self._delete, f"{self._root}/{folder}{name}")
            await self._gate.run(StoreOperation.ABORT_UPLOAD, "", partial(self._do, "", remove))
        return len(stale)

    async def close(self) -> None:
        """Release the gate; the library ends its connections by itself."""
        self._gate.close()

    @property
    def _client(self) -> AsyncClient:
        return self._clients[self._active]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    async def _step(
        self,
        operation: StoreOperation,
        key: str,
        call: Callable[[], Awaitable[Result]],
        upload_bytes: int = 0,
    ) -> Result:
        """One request of a put, which is repeated as a whole."""
        return await self._gate.once(
            operation, key, partial(self._do, key, call), upload_bytes=upload_bytes
        )

    async def _info(self, key: str) -> ObjectInfo:
        status = await self._client.get_file_info(self._path(key))
        return ObjectInfo(key, status.length, status.modification_time)

    async def _children(self, folder: str) -> Sequence[FolderEntry]:
        path = f"{self._root}/{folder}".rstrip("/") or "/"
        found: Sequence[FolderEntry] = [
            FolderEntry(
                status.path.rpartition("/")[2],
                None if status.isdir else status.length,
                status.modification_time,
            )
            async for status in self._client.list_status(path)
        ]
        return found

    async def _delete(self, path: str) -> None:
        await self._client.delete(path)

    async def _check_root(self) -> None:
        await self._client.get_file_info(self._root or "/")

    async def _do(self, key: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Await the library, its errors as `StoreError`s."""
        try:
            return await self._translating(key, call)
        except FileExistsError as error:
            raise ObjectExistsError(self.name, key, "exists") from error
        except FileNotFoundError as error:
            if key and await self._root_is_there():
                raise ObjectNotFoundError(self.name, key, "not found") from error
            raise StoreMissingError(self.name, "", f"{self._root} is not there") from error

    async def _root_is_there(self) -> bool:
        try:
            await self._translating("", self._check_root)
        except FileNotFoundError:
            return False
        return True

    async def _translating(self, key: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Await the library; what is no answer about a file is a `StoreError`."""
        try:
            return await call()
        except (FileExistsError, FileNotFoundError):
            raise
        except (OSError, RuntimeError, ValueError) as error:
            failure = _translated(error, self.name, key)
        except BaseException as error:
            # A panic of the library's, whose class no module exports.
            if type(error).__name__ != "PanicException":
                raise
            failure = StoreUnavailableError(self.name, key, f"hdfs-native: {error}")
        if failure.retryable:
            self._active = (self._active + 1) % len(self._clients)
        raise failure

    async def _remove_quietly(self, path: str) -> None:
        """Remove what may be gone, on a store that may be: `remove_leftovers` finds the rest."""
        try:
            await self._step(StoreOperation.ABORT_UPLOAD, "", partial(self._delete, path))
        except StoreError:
            return


async def _write(writer: AsyncFileWriter, part: Part) -> None:
    # The library copies what it is given before it lets others run: hence pieces.
    for buffer in part.buffers:
        view = memoryview(buffer)
        for position in range(0, len(view), _PIECE_BYTES):
            await writer.write(bytes(view[position : position + _PIECE_BYTES]))


def _translated(error: Exception, store: str, key: str) -> StoreError:
    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError):
        return StoreTimeoutError(store, key, text)
    if isinstance(error, PermissionError):
        return RefusedError(store, key, text)
    for name, kind in _REASONS:
        if name in text:
            return kind(store, key, text)
    return StoreUnavailableError(store, key, text)
