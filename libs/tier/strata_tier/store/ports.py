"""The object store as the tier sees it: named, immutable, whole objects and ranges of them.

Adapters are in `drivers/`, under one contract suite (`tests/contract/test_object_store.py`);
`open_store` makes one from a URL with retries, budgets and metrics already in it, so that a caller
sees an error only when retries did not help.

Invariants that every adapter keeps:

- An object appears whole or not at all; `put` under a name that exists replaces it whole.
  Repeating a `put` of the same bytes changes nothing, so a name that is derived from its content
  makes an upload idempotent (rule 28).
- A read returns exactly the bytes that were asked for or raises. A short body, a cut connection
  and a range beyond the end are errors, never "the end".
- An object is "not there" only if its bucket answers. A missing bucket, mount or folder is
  `StoreMissingError`: data that cannot be seen must not count as deleted.
- A finished `put` is durable as far as the store allows (posix: fsync of file and folder; HDFS:
  hsync).

It knows nothing of messages, manifests or checksums inside objects.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_runtime.errors import StrataError

Buffer = bytes | bytearray | memoryview

PartSource = Callable[[], AsyncIterator[Buffer]]
"""Opens the body again from its start; called once more when an upload must begin anew. Parts may
have any length: drivers gather them into what their store wants."""

Body = Buffer | PartSource

MAX_KEY_BYTES = 700
MAX_SEGMENT_BYTES = 200

_FOLDER = "[A-Za-z0-9_=~+-]+"
_KEY = re.compile(rf"(?:{_FOLDER}/)*{_FOLDER}(?:\.{_FOLDER})+")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Facts that a store knows of an object without reading it.

    Attributes:
        key: its name, without the prefix of the store's URL.
        size_bytes: its length.
        modified_ms: when it was put, by the store's clock (Unix milliseconds).
    """

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """A part of a listing.

    Attributes:
        objects: in ascending byte order of their keys.
        next_after: `after` of the next page; None: this was the last one.
    """

    objects: tuple[ObjectInfo, ...]
    next_after: str | None


class ObjectStore(Protocol):
    """One bucket (or folder) and prefix. Safe for many calls at once from one event loop.

    Keys are checked by `check_key`. Every call may raise a `StoreError`: `ThrottledError`,
    `StoreTimeoutError`, `StoreUnavailableError`, `StoreMissingError` and `RefusedError` from all
    of them, others where they are named.
    """

    @property
    def name(self) -> str:
        """The store without secrets (`s3://bucket/prefix`), for logs, errors and metric labels."""

    async def put(
        self,
        key: str,
        body: Body,
        *,
        size_bytes: int | None = None,
        if_absent: bool = False,
    ) -> ObjectInfo:
        """Store an object whole; replaces one of the same name.

        Args:
            key: its name.
            body: the bytes, or a source of parts that can be opened again. The parts are uploaded
                as they come; `part_bytes * (parts_in_flight + 1)` of them are held.
            size_bytes: length of the body if it is known and `body` is a source.
            if_absent: refuse to replace. Nothing in the tier needs it (rule 28). A repeat after an
                answer that was lost may refuse its own object.

        Raises:
            ObjectExistsError: `if_absent` and the name is taken.
            ValueError: the key is not allowed, or the source gave another length than
                `size_bytes`; nothing was stored.
        """

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `position`; without `length`, all to the end.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectTooShortError: the object ends before `position + length`.
            CorruptTransferError: the store kept sending other bytes than it announced.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object.

        Raises:
            ObjectNotFoundError: no such object.
        """

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """Return objects whose keys start with `prefix` and are greater than `after`.

        Args:
            prefix: any beginning of a key, not only whole folders.
            after: continue behind this key.
            limit: at most this many (1 to 1000); a page may be shorter and not be the last.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; a name that is not there is no error.

        After an error some may be gone: repeat the call.
        """

    async def remove_leftovers(self, before_ms: int) -> int:
        """Remove what broken uploads left behind: unfinished multipart uploads, temporary files.

        An upload that began before `before_ms` (Unix milliseconds, the store's clock) counts as
        broken; give it a day, for other nodes upload into the same store.

        Returns:
            How many were removed.
        """

    async def close(self) -> None:
        """Release connections and threads. Calls in flight end or fail first."""


class StoreError(StrataError):
    """A call to an object store failed.

    Attributes:
        store: `ObjectStore.name`.
        key: the object, "" if it concerns the store as a whole.
        retryable: whether the same call may well succeed a moment later.
    """

    retryable = False

    def __init__(self, store: str, key: str, reason: str) -> None:
        super().__init__(f"{store}: {key}: {reason}" if key else f"{store}: {reason}")
        self.store = store
        self.key = key
        self.reason = reason


class ObjectNotFoundError(StoreError):
    """The store answers and has no object of this name."""


class ObjectExistsError(StoreError):
    """The name is taken and the put asked not to replace."""


class ObjectTooShortError(StoreError):
    """The object ends before the bytes that were asked for: it is not what was uploaded."""


class CorruptTransferError(StoreError):
    """A body was cut, had a wrong checksum, or was refused by the store for one."""

    retryable = True


class ThrottledError(StoreError):
    """The store asks for fewer requests (503 SlowDown, 429)."""

    retryable = True


class StoreTimeoutError(StoreError):
    """No answer in time; whether the request was done is not known."""

    retryable = True


class StoreUnavailableError(StoreError):
    """The store cannot be reached or cannot serve now (connection refused, 5xx, safe mode)."""

    retryable = True


class StoreFullError(StoreUnavailableError):
    """No room or quota left; repeating at once does not help."""

    retryable = False


class StoreMissingError(StoreError):
    """The bucket, mount or folder itself is gone."""


class RefusedError(StoreError):
    """Credentials are missing, wrong, expired or do not allow this."""


def check_key(key: str) -> None:
    """Check an object's name.

    Folders have no dot, the last segment has one: so no key can ever be the folder of another,
    which stores that are file trees refuse. Only letters, digits and `_=~+-` otherwise, so that no
    store, shell or URL needs escapes.

    Raises:
        ValueError: the name breaks the rule or is longer than `MAX_KEY_BYTES`, or one of its
            segments than `MAX_SEGMENT_BYTES`.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"object key {key!r}: folders have no dot, the last segment has one")
    if len(key) > MAX_KEY_BYTES or max(map(len, key.split("/"))) > MAX_SEGMENT_BYTES:
        raise ValueError(f"object key {key!r} is too long")


def parts_of(buffers: Iterable[Buffer]) -> PartSource:
    """Return a source of parts that are already in memory."""
    kept = tuple(buffers)

    async def parts() -> AsyncIterator[Buffer]:
        for buffer in kept:
            yield buffer

    return parts
