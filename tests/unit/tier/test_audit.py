"""Manifests, archives and their verification from the bucket alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strata_tier.base.errors import DamagedObjectError, TierError
from strata_tier.objects.archive import ArchivedEntry, Description, decode_archive, encode_archive
from strata_tier.objects.names import ManifestName, checkpoint_key, metadata_key
from strata_tier.objects.spaces import PrefixedStore, Stores
from strata_tier.objects.state import DropRanges
from strata_tier.ranges.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_of,
    seal_json,
    unseal_json,
)
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.upkeep import bucket
from strata_tier.upkeep.audit import AuditOptions, AuditReport, verify
from tests.unit.tier.objects import HOME, RAFT_GROUP, Tier, messages_of, put_manifest, queue_of

ROWS = [(bytes([7, number]), b"row" * number) for number in range(5)]
ENTRIES = [ArchivedEntry(11, 2, b"entry with a body"), ArchivedEntry(12, 2, b"")]


async def _filled(tier: Tier) -> Manifest:
    """Fill a bucket with two objects, checkpoint, manifest and metadata."""
    await tier.add([queue_of(messages_of(1, 0, range(9))), queue_of(messages_of(2, 3, [5]))])
    await tier.add([queue_of(messages_of(1, 0, range(9, 20)))])
    name = ManifestName(RAFT_GROUP, 2, 1)
    key = checkpoint_key(HOME, name)
    description = Description(HOME, RAFT_GROUP, 40, 2, 9_000, 9_500, {"1": "%orders"})
    await tier.store.put(key, b"".join(encode_archive(description, ROWS, ENTRIES)))
    of_metadata = replace(description, raft_group=-1)
    await tier.store.put(metadata_key(HOME, 6), b"".join(encode_archive(of_metadata, ROWS)))
    manifest = manifest_of(tier.metadata, HOME, name, 40, 9_000, key)
    await put_manifest(tier.store, manifest)
    return manifest


async def _verified(store: MemoryObjectStore, *, is_deep: bool = True) -> AuditReport:
    return await verify(Stores(store), HOME, AuditOptions(is_deep=is_deep))


async def test_a_manifest_is_the_tier_state() -> None:
    """A manifest gives back the state that it was made of, row by row."""
    tier = Tier()
    manifest = await _filled(tier)
    again = decode_manifest(encode_manifest(manifest), manifest.key)
    assert again == decode_manifest(encode_manifest(again), again.key)
    assert list(again.metadata().rows()) == list(tier.metadata.rows())
    assert list(again.metadata().ranges(1, 0)) == list(tier.metadata.ranges(1, 0))


@pytest.mark.parametrize("change", ["flip", "cut", "longer"])
async def test_every_changed_byte_of_a_manifest_is_found(change: str) -> None:
    """A manifest with any byte changed, cut or added is damaged, whitespace too."""
    tier = Tier()
    await tier.add([queue_of(messages_of(1, 0, range(3)))])
    data = encode_manifest(manifest_of(tier.metadata, HOME, ManifestName(7, 1, 1), 4, 5))
    for position in range(len(data)):
        damaged = bytearray(data)
        if change == "flip":
            damaged[position] ^= 1
        elif change == "cut":
            del damaged[position:]
        else:
            damaged.insert(position, ord(" "))
        with pytest.raises(DamagedObjectError):
            decode_manifest(bytes(damaged), "manifest")


def test_sealed_json_is_one_text() -> None:
    """Sealed contents come back; a text with the same values in another form is refused."""
    data = seal_json("thing", {"b": [1, 2], "a": "ä"})
    assert unseal_json("thing", data, "key") == {"a": "ä", "b": [1, 2]}
    with pytest.raises(DamagedObjectError, match="canonical"):
        unseal_json("thing", data.replace(b"\n", b" "), "key")
    with pytest.raises(DamagedObjectError, match="no other"):
        unseal_json("other", data, "key")


async def test_every_changed_byte_of_an_archive_is_found() -> None:
    """An archive comes back whole, and with any byte flipped or cut off it is damaged."""
    description = Description(HOME, 3, 5, 6, 7, 8, {"9": "space%topic"})
    data = b"".join(encode_archive(description, ROWS, ENTRIES))
    archive = decode_archive(data, "key")
    assert (archive.description, archive.rows, archive.entries) == (description, ROWS, ENTRIES)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        for bad in (bytes(damaged), data[:position]):
            with pytest.raises(DamagedObjectError):
                decode_archive(bad, "key")


async def test_a_whole_bucket_is_verified() -> None:
    """Without damage there is no finding, and all of it was looked at."""
    tier = Tier(MemoryObjectStore())
    await _filled(tier)
    report = await _verified(tier.store)  # type: ignore[arg-type]
    assert report.is_whole
    assert (report.raft_groups, report.manifests, report.archives) == (1, 1, 2)
    assert (report.objects, report.messages, report.unnamed_objects) == (2, 21, 0)


async def test_names_of_others_are_no_findings() -> None:
    """Marks of folders, and files that an operator put beside manifests and archives."""
    store = MemoryObjectStore()
    manifest = await _filled(Tier(store))
    folders = (f"{HOME}/metadata/", f"{HOME}/manifests/", f"{HOME}/manifests/{RAFT_GROUP:08x}/")
    others = [folder + name for folder in folders for name in ("", "README", "zz.archive")]
    store.bucket.objects.update({key: (b"not the tier's", 0) for key in others})
    report = await _verified(store)
    assert (report.findings, report.manifests, report.archives) == ([], 1, 2)
    assert await bucket.manifests_in(store, HOME) == {RAFT_GROUP: [manifest.name]}


async def test_every_flipped_byte_in_the_bucket_is_found() -> None:
    """Verification names the object with the flipped byte, whatever object it is."""
    store = MemoryObjectStore()
    await _filled(Tier(store))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    objects = store.bucket.objects
    for key, (data, modified_ms) in list(objects.items()):
        positions = {0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(25))}
        for position in positions:
            damaged = bytearray(data)
            damaged[position] ^= 1 << chance.randrange(8)
            objects[key] = bytes(damaged), modified_ms
            report = await _verified(store)
            assert key in [finding.key for finding in report.findings], position
        objects[key] = data, modified_ms
    assert (await _verified(store)).is_whole


async def test_what_only_older_manifests_name_is_verified_while_it_is_there() -> None:
    """A dropped object may be gone; a flipped byte in it, or in an older archive, is found."""
    store = MemoryObjectStore()
    tier = Tier(store)
    older = await _filled(tier)
    tier.apply(DropRanges([(1, 0, 20), (2, 3, 6)], 10_000))
    await put_manifest(
        store, manifest_of(tier.metadata, HOME, ManifestName(RAFT_GROUP, 3, 0), 50, 9_900)
    )
    assert (await _verified(store)).is_whole
    dropped = older.objects[0].ref.key
    for key in (dropped, older.checkpoint):
        data, modified_ms = store.bucket.objects[key]
        store.bucket.objects[key] = data[:50] + bytes([data[50] ^ 8]) + data[51:], modified_ms
        assert [finding.key for finding in (await _verified(store)).findings] == [key]
        store.bucket.objects[key] = data, modified_ms
    del store.bucket.objects[dropped]
    assert (await _verified(store)).is_whole


async def test_missing_and_cut_objects_are_found() -> None:
    """An object that is gone or shorter is a finding, also when bodies are not read."""
    store = MemoryObjectStore()
    await _filled(Tier(store))
    first, second = [key for key in store.bucket.objects if "/sets/" in key]
    data, modified_ms = store.bucket.objects[first]
    store.bucket.objects[first] = data[:-1], modified_ms
    del store.bucket.objects[second]
    report = await _verified(store, is_deep=False)
    assert sorted(finding.key for finding in report.findings) == [first, second]


async def test_a_gap_in_a_queue_is_found() -> None:
    """A manifest whose queue has a hole, or names an object that it does not list, is a finding."""
    tier = Tier(MemoryObjectStore())
    manifest = await _filled(tier)
    (queue, other) = manifest.queues
    holed = replace(
        manifest,
        name=ManifestName(RAFT_GROUP, 2, 2),
        queues=[replace(queue, ranges=queue.ranges[1:]), other],
    )
    await put_manifest(tier.store, holed)
    unlisted = replace(manifest, name=ManifestName(8, 2, 2), objects=manifest.objects[:1])
    await put_manifest(tier.store, unlisted)
    report = await _verified(tier.store)  # type: ignore[arg-type]
    reasons = [finding.reason for finding in report.findings]
    assert "topic 1 queue 0: offsets 0 to 9 are in no object" in reasons
    assert any("is named and not listed" in reason for reason in reasons)


async def test_the_newest_valid_manifest_wins() -> None:
    """A damaged newest manifest is reported, and the one before it serves."""
    store = MemoryObjectStore()
    tier = Tier(store)
    manifest = await _filled(tier)
    tier.apply(DropRanges([(1, 0, 9)], 10_000))
    newer = manifest_of(tier.metadata, HOME, ManifestName(RAFT_GROUP, 3, 0), 50, 9_900)
    await put_manifest(store, newer)
    names = (await bucket.manifests_in(store, HOME))[RAFT_GROUP]
    found = await bucket.newest_manifest(store, HOME, names)
    assert (found.manifest.name, found.damaged) == (newer.name, [])
    data, modified_ms = store.bucket.objects[newer.key]
    store.bucket.objects[newer.key] = data[:-9], modified_ms
    found = await bucket.newest_manifest(store, HOME, names)
    assert found.manifest.name == manifest.name
    assert [error.key for error in found.damaged] == [newer.key]


async def test_a_manifest_under_another_name_is_refused() -> None:
    """A valid manifest of another raft group or number under a name is damage."""
    store = MemoryObjectStore()
    manifest = await _filled(Tier(store))
    other = ManifestName(RAFT_GROUP, 9, 9)
    await store.put(replace(manifest, name=other).key, encode_manifest(manifest))
    with pytest.raises(DamagedObjectError, match="it is"):
        await bucket.read_manifest(store, HOME, other)


async def test_homes_are_found() -> None:
    """A bucket says which clusters wrote to it; with several, one must be named."""
    store = MemoryObjectStore()
    with pytest.raises(TierError, match="holds no tier"):
        await bucket.one_home(store)
    await _filled(Tier(store))
    assert await bucket.one_home(store) == HOME
    space = PrefixedStore.of_space(store, "acme")
    await space.put(f"{HOME}/sets/00000007/x.set", b"data")
    await store.put(f"second/{metadata_key('', 1)[1:]}", b"data")
    assert await bucket.homes_in(store) == [HOME, "second"]
    with pytest.raises(TierError, match=f"{HOME}, second"):
        await bucket.one_home(store)
    assert await bucket.one_home(store, "second") == "second"


async def test_a_space_is_a_folder_of_the_default_store() -> None:
    """Keys of a space are the same as elsewhere; in the default store they have its prefix."""
    store = MemoryObjectStore()
    space = PrefixedStore.of_space(store, "acme")
    info = await space.put("home/a.set", b"12345")
    assert (info.key, await store.get("spaces/acme/home/a.set", 1, 2)) == ("home/a.set", b"23")
    await space.put("home/b.set", b"")
    await store.put("home/c.set", b"")
    assert [info.key async for info in bucket.objects_under(space, "")] == [
        "home/a.set",
        "home/b.set",
    ]
    page = await space.list("home/", after="home/a.set")
    assert [info.key for info in page.objects] == ["home/b.set"]
    await space.delete(["home/a.set"])
    assert (await space.head("home/b.set")).size_bytes == 0
    assert sorted(store.bucket.objects) == ["home/c.set", "spaces/acme/home/b.set"]
