"""Places of spaces: stores of namespaces with their own prefix or credentials.

A space without its own store is in a folder of the default store, so that a bucket alone shows
where everything is. Keys are the same in every space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_runtime.closing import close_all
from strata_tier.objects.names import DEFAULT_SPACE, space_prefix
from strata_tier.store.ports import Body, ObjectInfo, ObjectPage, ObjectStore


class Stores:
    """The stores of all spaces.

    Args:
        default: the store of `--tier`.
        spaces: stores of namespaces that have their own.

    Attributes:
        default: the same.
    """

    __slots__ = ("_owned", "_stores", "default")

    def __init__(
        self, default: ObjectStore, spaces: Mapping[str, ObjectStore] | None = None
    ) -> None:
        self.default = default
        self._stores = {DEFAULT_SPACE: default, **(spaces or {})}
        # Opened stores; the others are folders of the default one.
        self._owned = tuple(self._stores.values())

    def of(self, space: str) -> ObjectStore:
        """Return the store of a space."""
        store = self._stores.get(space)
        if store is None:
            store = self._stores[space] = PrefixedStore.of_space(self.default, space)
        return store

    async def close(self) -> None:
        """Close every store that was opened."""
        await close_all("object stores", *(store.close for store in self._owned))


class PrefixedStore:
    """A store that is a folder of another: the default place of a space."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @classmethod
    def of_space(cls, store: ObjectStore, space: str) -> PrefixedStore:
        """Return the store of a space that has none of its own."""
        return cls(store, space_prefix(space))

    @property
    def name(self) -> str:
        """The store's name with the folder."""
        return f"{self._store.name}/{self._prefix}".rstrip("/")

    async def put(
        self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False
    ) -> ObjectInfo:
        """See `ObjectStore.put`."""
        info = await self._store.put(
            self._prefix + key, body, size_bytes=size_bytes, if_absent=if_absent
        )
        return self._shortened(info)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        return await self._store.get(self._prefix + key, position, length)

    async def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return self._shortened(await self._store.head(self._prefix + key))

    async def list(self, prefix: str = "", after: str = "", limit: int = 1000) -> ObjectPage:
        """See `ObjectStore.list`."""
        behind = self._prefix + after if after else ""
        page = await self._store.list(self._prefix + prefix, behind, limit)
        next_after = page.next_after and page.next_after.removeprefix(self._prefix)
        return ObjectPage(tuple(map(self._shortened, page.objects)), next_after)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        await self._store.delete([self._prefix + key for key in keys])

    async def remove_leftovers(self, before_ms: int) -> int:
        """Nothing: whoever owns the store behind it removes those of all its folders."""
        return 0

    async def close(self) -> None:
        """Nothing: the store behind it is its owner's."""

    def _shortened(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key.removeprefix(self._prefix), info.size_bytes, info.modified_ms)
