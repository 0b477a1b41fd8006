"""One flipped bit anywhere in an object: a reader never gives other bytes than were stored."""

from __future__ import annotations

import random

from strata_mq.layout.hashing import key_hash
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import HEADER_BYTES
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.plan import Author
from strata_tier.objects.spaces import PrefixedStore, Stores
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.reader import TierFetch, TierRead, TierReader
from strata_tier.store.drivers.memory import MemoryObjectStore
from tests.unit.tier.objects import HOME, RAFT_GROUP, Message, Tier, messages_of, queue_of

SPACE = "acme"
QUEUES = ((1, 0), (1, 1), (2, 0))
POSITIONS = 60


async def _filled(store: MemoryObjectStore) -> tuple[Tier, dict[tuple[int, int], list[Message]]]:
    """Store two objects in the default place and one in that of a namespace."""
    tier = Tier(store)
    stored = {key: messages_of(*key, range(24), keys=(f"key {key}",)) for key in QUEUES}
    for first in (0, 12):
        await tier.add([queue_of(stored[key][first : first + 12]) for key in QUEUES[:2]])
    tier.store = PrefixedStore.of_space(store, SPACE)
    tier.author = Author(HOME, RAFT_GROUP, SPACE)
    await tier.add([queue_of(stored[QUEUES[2]])])
    return tier, stored


async def _read_everything(
    store: MemoryObjectStore, tier: Tier, stored: dict[tuple[int, int], list[Message]]
) -> int:
    """Read in all ways there are with nothing in memory; return how many reads found damage.

    A read gives what was stored, or says that it is damaged.
    """
    found = 0
    options = TierReadOptions(damaged_attempts=1, ahead_max_bytes=0)
    for (topic_id, queue), messages in stored.items():
        bodies = [message.stored for message in messages]
        for way in ("scan", "pieces", "fetch", "search"):
            reader = TierReader(Stores(store), options, Metrics.disabled(), clock=ManualClock(0.0))
            try:
                match way:
                    case "scan":
                        read = TierRead(topic_id, queue, range(len(messages)), 1)
                        assert await reader.messages(tier.metadata, read) == bodies
                    case "pieces":
                        for offset, body in enumerate(bodies):
                            read = TierRead(topic_id, queue, (offset,), is_scan=False)
                            assert await reader.messages(tier.metadata, read) == [body]
                    case "fetch":
                        fetch = TierFetch(topic_id, queue, 0, 100, 10**6)
                        fetched = await reader.fetch(tier.metadata, fetch)
                        assert [each.message for each in fetched.messages] == bodies
                    case "search":
                        hash_value = key_hash(f"key {(topic_id, queue)}")
                        wanted = (tier.metadata, topic_id, hash_value, range(10**6), 100)
                        hits = await reader.search.find_key(*wanted)
                        assert sorted(hits) == [(queue, at) for at in range(len(messages))]
            except DamagedObjectError:
                found += 1
            finally:
                await reader.close()
    return found


async def test_a_reader_finds_every_flipped_bit() -> None:
    """A flipped bit behind the header of any object is told by some read."""
    store = MemoryObjectStore()
    tier, stored = await _filled(store)
    assert await _read_everything(store, tier, stored) == 0
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    objects = store.bucket.objects
    assert len(objects) == 3
    for key, (data, modified_ms) in list(objects.items()):
        edges = {HEADER_BYTES, len(data) - 1}
        for position in edges | {rng.randrange(HEADER_BYTES, len(data)) for _ in range(POSITIONS)}:
            flipped = bytearray(data)
            flipped[position] ^= 1 << rng.randrange(8)
            objects[key] = bytes(flipped), modified_ms
            assert await _read_everything(store, tier, stored), (key, position)
        objects[key] = data, modified_ms
    assert await _read_everything(store, tier, stored) == 0


async def test_an_index_from_memory_is_that_of_the_object() -> None:
    """Last bytes of an object give its index without a request; other bytes are refused."""
    store = MemoryObjectStore()
    tier, stored = await _filled(store)
    (held, *_) = [each for each in tier.metadata.objects() if not each.ref.space]
    data, _ = store.bucket.objects[held.ref.key]
    index = OpenObject.of_tail(store, held.ref, data)
    assert index is not None
    assert (await index.entry(0)).base_offset in (0, 12)
    assert OpenObject.of_tail(store, held.ref, data[-50:]) is None
    flipped = data[:-60] + bytes((data[-60] ^ 1,)) + data[-59:]
    for bad in (flipped, data[:-1]):
        try:
            OpenObject.of_tail(store, held.ref, bad)
        except DamagedObjectError:
            continue
        raise AssertionError("damage was not seen")
    reader = TierReader(
        Stores(store), TierReadOptions(), Metrics.disabled(), clock=ManualClock(0.0)
    )
    reader.remember(held.ref, data)
    del store.bucket.objects[held.ref.key]
    columns = reader._source.open(held.ref, 1)
    assert (await columns).ref == held.ref
    assert stored
    await reader.close()
