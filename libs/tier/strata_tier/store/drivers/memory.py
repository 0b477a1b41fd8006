"""Objects in memory: for tests and for nodes whose tier may die with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from strata_runtime.clock import Clock, SystemClock
from strata_tier.store.drivers.bodies import parts_in
from strata_tier.store.ports import (
    Body,
    ObjectExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectPage,
    ObjectTooShortError,
    StoreMissingError,
    check_key,
)
from strata_tier.store.retrying import RequestGate, StoreOperation

Result = TypeVar("Result")


class Trouble(Protocol):
    """Plays a store that is slow or fails."""

    async def before(self, operation: StoreOperation, key: str) -> None:
        """Let a request reach the store; what it raises, the store says."""

    async def after(self, operation: StoreOperation, key: str) -> None:
        """Let its answer come back; what it raises, the caller sees though all was done."""


@dataclass(slots=True)
class MemoryBucket:
    """The objects, which outlive a store that was closed.

    Attributes:
        objects: key -> (bytes, Unix milliseconds). A test may change them behind a store's back.
        missing: True plays a bucket that is gone.
        trouble: plays what requests meet; None: nothing.
    """

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    missing: bool = False
    trouble: Trouble | None = None


class MemoryObjectStore:
    """An `ObjectStore` over a `MemoryBucket`.

    Args:
        bucket: the objects; stores that share it see the same ones.
        gate: what requests pass.
        clock: stamps the objects.
    """

    def __init__(
        self,
        bucket: MemoryBucket | None = None,
        gate: RequestGate | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self._gate = gate or RequestGate("memory://")
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        """The store's URL."""
        return self._gate.store

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        """Store an object; see the port."""
        check_key(key)
        part_bytes = self._gate.options.part_bytes
        parts = [part async for part in parts_in(body, part_bytes, size_bytes)]
        content = b"".join(part.joined() for part in parts)

        async def store() -> ObjectInfo:
            objects = self._objects()
            if if_absent and key in objects:
                raise ObjectExistsError(self.name, key, "exists")
            objects[key] = (content, self._clock.wall_ms())
            return ObjectInfo(key, len(content), objects[key][1])

        return await self._run(StoreOperation.PUT, key, store, upload_bytes=len(content))

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Read an object; see the port."""
        check_key(key)

        async def read() -> bytes:
            content = self._object(key)[0]
            end = len(content) if length is None else position + length
            if max(position, end) > len(content):
                raise ObjectTooShortError(self.name, key, f"ends at {len(content)}, not {end}")
            return content[position:end]

        announced = length or 0
        body = await self._run(StoreOperation.GET, key, read, download_bytes=announced)
        await self._gate.received(len(body), announced)
        return body

    async def head(self, key: str) -> ObjectInfo:
        """Describe an object; see the port."""
        check_key(key)

        async def describe() -> ObjectInfo:
            content, modified_ms = self._object(key)
            return ObjectInfo(key, len(content), modified_ms)

        return await self._run(StoreOperation.HEAD, key, describe)

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects; see the port."""

        async def page() -> ObjectPage:
            found = sorted(key for key in self._objects() if key.startswith(prefix) and key > after)
            infos = tuple(
                ObjectInfo(key, len(content), modified_ms)
                for key in found[:limit]
                for content, modified_ms in [self._object(key)]
            )
            return ObjectPage(infos, found[limit - 1] if len(found) > limit else None)

        return await self._run(StoreOperation.LIST, "", page)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; see the port."""
        for key in keys:
            check_key(key)

        async def remove() -> None:
            objects = self._objects()
            for key in keys:
                objects.pop(key, None)

        await self._run(StoreOperation.DELETE, "", remove)

    async def remove_leftovers(self, before_ms: int) -> int:
        """Nothing is ever half stored here."""
        return 0

    async def close(self) -> None:
        """Release the gate; the bucket stays."""
        self._gate.close()

    async def _run(
        self,
        operation: StoreOperation,
        key: str,
        call: Callable[[], Awaitable[Result]],
        *,
        upload_bytes: int = 0,
        download_bytes: int = 0,
    ) -> Result:
        async def played() -> Result:
            trouble = self.bucket.trouble
            if trouble is None:
                return await call()
            await trouble.before(operation, key)
            result = await call()
            await trouble.after(operation, key)
            return result

        return await self._gate.run(
            operation, key, played, upload_bytes=upload_bytes, download_bytes=download_bytes
        )

    def _objects(self) -> dict[str, tuple[bytes, int]]:
        if self.bucket.missing:
            raise StoreMissingError(self.name, "", "the bucket is gone")
        return self.bucket.objects

    def _object(self, key: str) -> tuple[bytes, int]:
        try:
            return self._objects()[key]
        except KeyError:
            raise ObjectNotFoundError(self.name, key, "not found") from None
