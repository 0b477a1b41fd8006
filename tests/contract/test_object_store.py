"""Every object store keeps these promises, whatever it is made of."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from strata_tier.store.known import NothingKnown
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import (
    Buffer,
    ObjectExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooShortError,
    StoreMissingError,
    parts_of,
)
from tests.parts.stores import SCHEMES, Scheme, UrlOf

MIB = 1024 * 1024
# S3 takes no smaller parts.
PART = 5 * MIB

# The first test of a kind waits for its servers.
pytestmark = pytest.mark.timeout(480)


@pytest.fixture(params=SCHEMES)
async def store(request: pytest.FixtureRequest, url_of: UrlOf) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    place = url_of(request.param)
    opened = await open_store(
        place.url, OpenWith(options=place.options(part_bytes=PART), credentials=place.credentials)
    )
    yield opened
    await opened.close()


async def every_key(store: ObjectStore, prefix: str = "", limit: int = 1000) -> list[str]:
    """All pages of a listing."""
    keys: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(prefix, after, limit)
        keys += [info.key for info in page.objects]
        after = page.next_after
    return keys


async def test_what_was_put_is_read(store: ObjectStore) -> None:
    """An object has the bytes, the length and about the time it was put with."""
    put = await store.put("a/first.bin", b"hello world")
    assert (put.key, put.size_bytes) == ("a/first.bin", 11)
    assert await store.get("a/first.bin") == b"hello world"
    head = await store.head("a/first.bin")
    assert (head.key, head.size_bytes) == ("a/first.bin", 11)
    assert abs(head.modified_ms - put.modified_ms) <= 2000


@pytest.mark.parametrize("body", [bytearray(b"some bytes"), memoryview(b"some bytes")])
async def test_any_buffer_is_a_body(store: ObjectStore, body: Buffer) -> None:
    """A bytearray or a view is stored as bytes are."""
    await store.put("any.bin", body)
    assert await store.get("any.bin") == b"some bytes"


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    """Zero bytes are stored, found, listed and read as zero bytes."""
    await store.put("empty.bin", b"")
    assert await store.get("empty.bin") == b""
    assert await store.get("empty.bin", 0, 0) == b""
    assert (await store.head("empty.bin")).size_bytes == 0
    assert await every_key(store) == ["empty.bin"]


async def test_ranges(store: ObjectStore) -> None:
    """A range is exactly the bytes asked for, at the start, inside and at the end."""
    await store.put("range.bin", b"0123456789")
    ranges = [(0, 1), (3, 4), (9, 1), (0, 10), (5, 0), (10, 0)]
    for position, length in ranges:
        expected = b"0123456789"[position : position + length]
        assert await store.get("range.bin", position, length) == expected
    assert await store.get("range.bin", 4) == b"456789"
    assert await store.get("range.bin", 10) == b""


@pytest.mark.parametrize(("position", "length"), [(0, 11), (9, 2), (10, 1), (50, 5), (11, None)])
async def test_no_short_read(store: ObjectStore, position: int, length: int | None) -> None:
    """A range that the object does not hold whole is an error, never fewer bytes."""
    await store.put("short.bin", b"0123456789")
    with pytest.raises(ObjectTooShortError):
        await store.get("short.bin", position, length)


async def test_what_is_not_there(store: ObjectStore) -> None:
    """An object that is not there is "not found" on every way, also where folders exist."""
    await store.put("folder/there.bin", b"x")
    for key in ("missing.bin", "folder/missing.bin", "other/missing.bin"):
        with pytest.raises(ObjectNotFoundError):
            await store.get(key)
        with pytest.raises(ObjectNotFoundError):
            await store.get(key, 0, 1)
        with pytest.raises(ObjectNotFoundError):
            await store.head(key)


async def test_a_put_replaces(store: ObjectStore) -> None:
    """The second put of a name wins whole; the same bytes again change nothing."""
    await store.put("again.bin", b"a long first version")
    for _ in range(2):
        await store.put("again.bin", b"second")
        assert await store.get("again.bin") == b"second"
    assert await every_key(store) == ["again.bin"]


async def test_a_put_that_must_not_replace(store: ObjectStore) -> None:
    """`if_absent` stores a new name and refuses one that is taken, whatever the body's size."""
    await store.put("once.bin", b"first", if_absent=True)
    with pytest.raises(ObjectExistsError):
        await store.put("once.bin", b"second", if_absent=True)
    with pytest.raises(ObjectExistsError):
        await store.put("once.bin", bytes(PART + 1), if_absent=True)
    assert await store.get("once.bin") == b"first"


async def test_of_many_that_must_not_replace_one_wins(store: ObjectStore) -> None:
    """Exactly one of eight conditional puts at once is stored, and reads give that one."""

    async def attempt(number: int) -> int | None:
        try:
            await store.put("race.bin", b"%d" % number, if_absent=True)
        except ObjectExistsError:
            return None
        return number

    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(attempt(number)) for number in range(8)]
    winners = [won for task in tries if (won := task.result()) is not None]
    assert len(winners) == 1
    assert await store.get("race.bin") == b"%d" % winners[0]


@pytest.mark.parametrize("size_known", [True, False])
async def test_a_large_body_from_parts(store: ObjectStore, size_known: bool) -> None:
    """Parts of any length become one object, byte for byte, with its size known or not."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    parts = [chance.randbytes(chance.randrange(3 * MIB)) for _ in range(9)] + [b"tail"]
    whole = b"".join(parts)
    size_bytes = len(whole) if size_known else None
    info = await store.put("large/parts.bin", parts_of(parts), size_bytes=size_bytes)
    assert info.size_bytes == len(whole)
    assert await store.get("large/parts.bin") == whole
    assert await store.get("large/parts.bin", PART - 7, 20) == whole[PART - 7 : PART + 13]
    assert await store.get("large/parts.bin", len(whole) - 4, 4) == b"tail"


async def test_a_large_buffer(store: ObjectStore) -> None:
    """A buffer longer than a part is stored whole."""
    body = os.urandom(2 * PART + 1)
    await store.put("large/buffer.bin", body)
    assert await store.get("large/buffer.bin") == body


async def test_an_empty_source(store: ObjectStore) -> None:
    """A source without parts is an empty object."""
    await store.put("large/none.bin", parts_of([]))
    assert await store.get("large/none.bin") == b""


async def test_a_source_of_another_size_is_refused(store: ObjectStore) -> None:
    """A body that is not as long as promised stores nothing and replaces nothing."""
    await store.put("promised.bin", b"before")
    for parts in ([b"12345"], [bytes(PART), bytes(PART), b"1"]):
        with pytest.raises(ValueError, match="promised"):
            await store.put("promised.bin", parts_of(parts), size_bytes=4)
    assert await store.get("promised.bin") == b"before"


async def test_a_source_that_fails_stores_nothing(store: ObjectStore) -> None:
    """An error while the body is read is the caller's, and the name keeps what it had."""
    await store.put("failing.bin", b"before")

    async def failing() -> AsyncIterator[Buffer]:
        yield bytes(PART)
        yield bytes(PART)
        raise LookupError("the body is gone")

    with pytest.raises(LookupError):
        await store.put("failing.bin", failing)
    assert await store.get("failing.bin") == b"before"
    assert await every_key(store) == ["failing.bin"]


async def test_a_cancelled_put_stores_nothing(store: ObjectStore) -> None:
    """A put that is cancelled half way leaves no object and no listed part of one."""
    half = asyncio.Event()

    async def endless() -> AsyncIterator[Buffer]:
        yield bytes(PART)
        yield bytes(PART)
        half.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        put = group.create_task(store.put("cancelled.bin", endless))
        await half.wait()
        put.cancel()
    assert put.cancelled()
    with pytest.raises(ObjectNotFoundError):
        await store.head("cancelled.bin")
    assert await every_key(store) == []


async def test_listing_is_in_byte_order(store: ObjectStore) -> None:
    """A listing has every key once, in the byte order of whole keys, in pages of any size."""
    keys = [
        "a-b.x",
        "a.x",
        "a/b.x",
        "a/b/c.x",
        "a/b0/c.x",
        "a0/b.x",
        "A.x",
        "b/1.x",
        "b/10.x",
        "b/2.x",
        "z.x",
    ]
    for key in keys:
        await store.put(key, key.encode())
    for limit in (1, 3, 11, 1000):
        assert await every_key(store, limit=limit) == sorted(keys)
    page = await store.list("a/b/", limit=5)
    assert page.objects[0].size_bytes == len("a/b/c.x")


@pytest.mark.parametrize(
    ("prefix", "after", "expected"),
    [
        ("a/", "", ["a/1.x", "a/2.x", "a/sub/3.x"]),
        ("a/s", "", ["a/sub/3.x"]),
        ("a", "", ["a-b.x", "a/1.x", "a/2.x", "a/sub/3.x"]),
        ("a/", "a/1.x", ["a/2.x", "a/sub/3.x"]),
        ("", "a/2.x", ["a/sub/3.x", "b.x"]),
        ("", "a/sub/3.x", ["b.x"]),
        ("a/", "b.x", []),
        ("c", "", []),
    ],
)
async def test_listing_by_prefix(
    store: ObjectStore, prefix: str, after: str, expected: list[str]
) -> None:
    """A prefix may end inside a name; `after` is left out, and so is all before it."""
    for key in ("a-b.x", "a/1.x", "a/2.x", "a/sub/3.x", "b.x"):
        await store.put(key, b"x")
    page = await store.list(prefix, after)
    assert [info.key for info in page.objects] == expected


async def test_delete(store: ObjectStore) -> None:
    """Deleted objects are gone, others stay, and a name that is not there is no error."""
    for number in range(5):
        await store.put(f"d/{number}.x", b"x")
    await store.delete(["d/1.x", "d/3.x", "d/never.x", "never/there.x"])
    assert await every_key(store) == ["d/0.x", "d/2.x", "d/4.x"]
    with pytest.raises(ObjectNotFoundError):
        await store.get("d/1.x")
    await store.delete([])
    await store.delete(["d/1.x"])


@pytest.mark.parametrize(
    "key", ["", "/a.x", "a//b.x", "a/", "a", "a/b", "../a.x", "a.b/c.x", "a/.x", "ä.x", "a b.x"]
)
async def test_names_that_some_store_would_refuse(store: ObjectStore, key: str) -> None:
    """A name that could be a folder of another, or needs escapes, is refused before it is sent."""
    with pytest.raises(ValueError, match="object key"):
        await store.put(key, b"x")
    with pytest.raises(ValueError, match="object key"):
        await store.get(key)
    with pytest.raises(ValueError, match="object key"):
        await store.delete([key])


async def test_many_calls_at_once(store: ObjectStore) -> None:
    """Calls side by side do not disturb each other, more of them than there are turns."""

    async def there_and_back(number: int) -> ObjectInfo:
        body = f"object {number}".encode() * 100
        info = await store.put(f"many/{number:03d}.x", body)
        assert await store.get(f"many/{number:03d}.x") == body
        return info

    async with asyncio.TaskGroup() as group:
        puts = [group.create_task(there_and_back(number)) for number in range(24)]
    keys = [put.result().key for put in puts]
    assert await every_key(store, "many/") == keys


async def test_leftovers_are_only_what_is_old(store: ObjectStore) -> None:
    """Removing leftovers touches no object, and nothing younger than asked for."""
    info = await store.put("kept.bin", bytes(PART + 1))
    assert await store.remove_leftovers(info.modified_ms - 1000) == 0
    await store.remove_leftovers(info.modified_ms + 3_600_000)
    assert await every_key(store) == ["kept.bin"]


class KnownKeys(NothingKnown):
    """The knowledge of a node whose raft groups name an object in the store."""

    async def keys(self) -> list[str]:
        return ["home/there.bin"]


@pytest.mark.parametrize("scheme", ["posix", "hdfs"])
async def test_a_folder_of_which_something_is_known_is_not_made(
    url_of: UrlOf, scheme: Scheme
) -> None:
    """Where objects must be, a missing folder is "missing", also for a store that opens anew."""
    place = url_of(scheme)
    known = NothingKnown()
    known.mark = "seen"
    for each in (known, KnownKeys()):
        store = await open_store(place.url, OpenWith(place.options(), known=each))
        for call in (store.put("a.bin", b"lost"), store.list()):
            with pytest.raises(StoreMissingError):
                await call
        await store.close()
    begun = NothingKnown()
    store = await open_store(place.url, OpenWith(place.options(), known=begun))
    await store.put("a.bin", b"kept")
    await store.close()
    assert begun.mark
    store = await open_store(place.url, OpenWith(place.options(), known=begun))
    await store.put("b.bin", b"more")
    assert await every_key(store) == ["a.bin", "b.bin"]
    await store.close()
