"""Contents of a bucket without a cluster: homes, manifests, archives, objects.

It reads only the store. The highest valid manifest of a raft group wins (rule 28); a damaged
manifest is reported, never hidden, and an older one is used instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from strata_tier.base.errors import DamagedObjectError, TierError
from strata_tier.objects.archive import Archive, decode_archive
from strata_tier.objects.names import (
    MANIFEST_FOLDER,
    METADATA_FOLDER,
    SPACES_FOLDER,
    ManifestName,
    check_home,
    manifest_prefix,
    metadata_prefix,
    parse_manifest_key,
    parse_metadata_key,
)
from strata_tier.ranges.manifest import Manifest, decode_manifest
from strata_tier.store.ports import ObjectInfo, ObjectStore

_LAST = "~~~~"
"""Sorts behind every folder of a home: no letter of a key is greater than `~`."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """The newest valid manifest of a raft group, and what was wrong with newer ones."""

    manifest: Manifest
    damaged: Sequence[DamagedObjectError]


async def objects_under(store: ObjectStore, prefix: str) -> AsyncIterator[ObjectInfo]:
    """Yield all objects whose keys begin with a prefix, in order."""
    after: str | None = ""
    while after is not None:
        page = await store.list(prefix, after)
        for info in page.objects:
            yield info
        after = page.next_after


async def homes_in(store: ObjectStore) -> list[str]:
    """Return the homes that have something in a store."""
    homes: list[str] = []
    after = ""
    while True:
        page = await store.list("", after, 1)
        if not page.objects:
            if page.next_after is None:
                return homes
            after = page.next_after
            continue
        home = page.objects[0].key.split("/")[0]
        if await _is_home(store, home):
            homes.append(home)
        after = f"{home}/{_LAST}"


async def _is_home(store: ObjectStore, home: str) -> bool:
    if home == SPACES_FOLDER:
        return False
    for folder in (MANIFEST_FOLDER, METADATA_FOLDER, "sets"):
        async for _ in objects_under(store, f"{home}/{folder}/"):
            return True
    return False


async def one_home(store: ObjectStore, wanted: str = "") -> str:
    """Return the home to work on: the one that is named, else the only one.

    Raises:
        TierError: there is none, or there are several and none is named.
    """
    homes = [wanted] if wanted else await homes_in(store)
    if len(homes) == 1:
        return check_home(homes[0])
    if not homes:
        raise TierError(f"{store.name} holds no tier")
    raise TierError(f"{store.name} holds several clusters, name one: {', '.join(homes)}")


async def manifests_of(store: ObjectStore, home: str, raft_group: int) -> list[ManifestName]:
    """Return the names of a raft group's manifests, the newest last; lists only those."""
    return (await _manifests_under(store, home, raft_group)).get(raft_group, [])


async def manifests_in(store: ObjectStore, home: str) -> dict[int, list[ManifestName]]:
    """Return the names of all manifests by raft group, the newest last."""
    return await _manifests_under(store, home, None)


async def _manifests_under(
    store: ObjectStore, home: str, raft_group: int | None
) -> dict[int, list[ManifestName]]:
    names: dict[int, list[ManifestName]] = {}
    async for info in objects_under(store, manifest_prefix(home, raft_group)):
        name = parse_manifest_key(home, info.key)
        if name is not None:
            names.setdefault(name.raft_group, []).append(name)
    return names


async def newest_manifest(
    store: ObjectStore, home: str, names: Sequence[ManifestName]
) -> FoundManifest:
    """Return the highest valid manifest of a raft group.

    Args:
        store: the default store.
        home: id of the cluster.
        names: of the raft group's manifests, the newest last.

    Raises:
        DamagedObjectError: none of them is valid.
        StoreError: one cannot be read.
    """
    damaged: list[DamagedObjectError] = []
    for name in reversed(names):
        try:
            return FoundManifest(await read_manifest(store, home, name), damaged)
        except DamagedObjectError as error:
            damaged.append(error)
    raise damaged[0]


async def read_manifest(store: ObjectStore, home: str, name: ManifestName) -> Manifest:
    """Return one manifest.

    Raises:
        DamagedObjectError: it is not what was written, or another one under this name.
        StoreError: it cannot be read.
    """
    key = Manifest(home, name, 0, 0, "", (), ()).key
    manifest = decode_manifest(await store.get(key), key)
    if manifest.key != key:
        raise DamagedObjectError(key, f"it is {manifest.key}")
    return manifest


async def read_archive(store: ObjectStore, key: str) -> Archive:
    """Return an archive.

    Raises:
        DamagedObjectError: it is not what was written.
        StoreError: it cannot be read.
    """
    return decode_archive(await store.get(key), key)


async def metadata_keys(store: ObjectStore, home: str) -> list[str]:
    """Return the keys of all archives of the nameserver's rows, the newest last.

    Names that are not the tier's, such as marks of folders, are left out.
    """
    infos = objects_under(store, metadata_prefix(home))
    return [info.key async for info in infos if parse_metadata_key(home, info.key) is not None]


async def newest_metadata(
    store: ObjectStore, home: str
) -> tuple[str, Archive | None, list[DamagedObjectError]]:
    """Return key and contents of the newest valid archive of the nameserver's rows.

    Returns:
        (key, archive, what was wrong with newer ones); ("", None, ...) if there is none.
    """
    keys = await metadata_keys(store, home)
    damaged: list[DamagedObjectError] = []
    for key in reversed(keys):
        try:
            return key, await read_archive(store, key), damaged
        except DamagedObjectError as error:
            damaged.append(error)
    return "", None, damaged
