"""Objects: what is written is read back, names follow contents, damage is found."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_mq.layout.hashing import key_hash, text_hash
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.blocks import SearchTerms, id_hash, id_hashes
from strata_tier.objects.layout import HEADER_BYTES, ObjectKind, decode_header
from strata_tier.objects.names import (
    ManifestName,
    manifest_key,
    metadata_key,
    parse_manifest_key,
    parse_metadata_key,
    parse_object_key,
    space_prefix,
)
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.plan import Author, PlanOptions, QueueRuns, plan_object
from strata_tier.objects.state import ObjectRef
from strata_tier.objects.writer import BlockData, BodyDamagedError, ObjectWriter
from strata_tier.store.drivers.memory import MemoryObjectStore
from strata_tier.store.ports import check_key
from tests.unit.tier.objects import (
    HOME,
    RAFT_GROUP,
    Message,
    data_of,
    messages_of,
    queue_of,
    run_of,
    written,
)

AUTHOR = Author(HOME, RAFT_GROUP)


async def _opened(data: bytes, ref: ObjectRef, tail_bytes: int = 64 * 1024) -> OpenObject:
    store = MemoryObjectStore()
    await store.put(ref.key, data)
    return await OpenObject.open(store, ref, tail_bytes)


async def _read_all(opened: OpenObject) -> dict[tuple[int, int, int], bytes]:
    """Return (topic, queue, offset) -> message of all blocks, one by one."""
    found = {}
    for number in range(opened.root.block_count):
        entry = await opened.entry(number)
        (block,) = await opened.blocks([entry])
        for ordinal, offset in enumerate(block.columns.offsets):
            found[entry.topic_id, entry.queue, offset] = block.messages([ordinal])[0]
    return found


queues_drawn = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(0, 3)),
    st.tuples(
        st.integers(0, 2**40),
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 200)), min_size=0, max_size=40),
    ),
    min_size=1,
    max_size=6,
)


def _drawn(
    drawn: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]],
) -> tuple[list[QueueRuns], dict[tuple[int, int, int], bytes]]:
    queues: list[QueueRuns] = []
    model: dict[tuple[int, int, int], bytes] = {}
    for (topic_id, queue), (first, steps) in drawn.items():
        offset = first
        messages = []
        for step, body_bytes in steps:
            offset += step
            messages.append(
                Message(topic_id, queue, offset, body_bytes=body_bytes, time_ms=offset // 2)
            )
            model[topic_id, queue, offset] = messages[-1].stored
        cut = len(messages) // 2
        runs = [run_of(part) for part in (messages[:cut], messages[cut:]) if part]
        queues.append(QueueRuns(topic_id, queue, first, offset + 3, runs))
    return queues, model


@settings(deadline=None, max_examples=60)
@given(drawn=queues_drawn, block_bytes=st.integers(1, 2_000), tail_bytes=st.integers(40, 3_000))
async def test_an_object_gives_back_what_was_written(
    drawn: dict[tuple[int, int], tuple[int, list[tuple[int, int]]]],
    block_bytes: int,
    tail_bytes: int,
) -> None:
    """Every message is read back, blocks tile each queue's offsets, ranges say where they are."""
    queues, model = _drawn(drawn)
    plan = plan_object(AUTHOR, queues, PlanOptions(block_bytes))
    data, ref = written(plan)
    assert len(data) == ref.length
    opened = await _opened(data, ref, tail_bytes)
    assert await _read_all(opened) == model
    assert decode_header(data[:HEADER_BYTES], ref.key).object_id == ref.object_id
    assert opened.root.message_count == len(model)
    for each in plan.ranges:
        entries = await opened.entries(each.first_block, each.block_count)
        at = each.first_offset
        for entry in entries:
            assert (entry.topic_id, entry.queue, entry.base_offset) == (*each[:2], at)
            at = entry.end_offset
        assert at == each.end_offset
        for offset in (each.first_offset, each.end_offset - 1):
            number = await opened.find(each, offset)
            entry = await opened.entry(number)
            assert entry.base_offset <= offset < entry.end_offset


def test_a_name_follows_the_contents() -> None:
    """The same messages give the same name and bytes in any order; another message another one."""
    one, two = messages_of(1, 0, range(5)), messages_of(1, 1, range(5))
    plan = plan_object(AUTHOR, [queue_of(one), queue_of(two)], PlanOptions(100))
    again = plan_object(AUTHOR, [queue_of(two), queue_of(one)], PlanOptions(100))
    assert (plan.key, written(plan)) == (again.key, written(again))
    others: list[Sequence[QueueRuns]] = [
        [queue_of(one), queue_of([*two[:4], replace(two[4], body_bytes=41)])],
        [queue_of(one), queue_of(two[:4], end=5)],
        [queue_of(one), queue_of(two, end=6)],
        [queue_of(one), queue_of([*two[:4], replace(two[4], tag="A")])],
    ]
    keys = {plan_object(AUTHOR, queues, PlanOptions(100)).key for queues in others}
    keys.add(plan_object(AUTHOR, [queue_of(one), queue_of(two)], PlanOptions(101)).key)
    keys.add(
        plan_object(
            Author(HOME, RAFT_GROUP, "acme"), [queue_of(one), queue_of(two)], PlanOptions(100)
        ).key
    )
    assert len(keys | {plan.key}) == 7


def test_a_salted_name_is_nobody_elses() -> None:
    """A writer of the same messages with a salt of its own writes another object."""
    queues = [queue_of(messages_of(1, 0, range(5)))]
    keys = {plan_object(AUTHOR, queues, PlanOptions(salt=salt)).key for salt in (0, 1, 2, 1)}
    assert len(keys) == 3


def test_an_objects_key_says_its_id() -> None:
    """Keys that are derived are taken apart again; those of others, and other keys, are not."""
    queues = [queue_of(messages_of(1, 0, range(5)))]
    for kind in ObjectKind:
        plan = plan_object(AUTHOR, queues, PlanOptions(), kind)
        assert parse_object_key(HOME, RAFT_GROUP, plan.key) == plan.object_id
        assert parse_object_key("other", RAFT_GROUP, plan.key) is None
        assert parse_object_key(HOME, RAFT_GROUP + 1, plan.key) is None
        assert parse_object_key(HOME, RAFT_GROUP, f"{plan.key}.set") is None
    name = ManifestName(RAFT_GROUP, 3, 12)
    assert parse_object_key(HOME, RAFT_GROUP, manifest_key(HOME, name)) is None
    assert parse_object_key(HOME, RAFT_GROUP, f"{HOME}/sets/{RAFT_GROUP:08x}/0-0.set") is None


def test_keys_are_allowed_by_the_port() -> None:
    """Every name that is derived passes the port's check and says what it was made of."""
    name = ManifestName(7, 3, 12)
    key = manifest_key(HOME, name)
    for each in (key, plan_object(AUTHOR, [queue_of(messages_of(1, 0, [4]))], PlanOptions()).key):
        check_key(each)
    assert parse_manifest_key(HOME, key) == name
    assert parse_manifest_key("other", key) is None
    assert space_prefix("acme") + key == f"spaces/acme/{key}"


def test_the_key_of_metadata_says_its_revision() -> None:
    """Keys that are derived are taken apart again; those of others, and other names, are not."""
    key = metadata_key(HOME, 0xABC)
    assert parse_metadata_key(HOME, key) == 0xABC
    assert parse_metadata_key("other", key) is None
    folder = f"{HOME}/metadata/"
    strangers = ("", "README", "1.archive", f"{1:016x}.archive.old", f"old/{1:016x}.archive")
    for name in strangers:
        assert parse_metadata_key(HOME, folder + name) is None
    assert parse_metadata_key(HOME, key.removeprefix(f"{HOME}/")) is None


@pytest.mark.parametrize(
    ("space", "folder"),
    [
        ("a%b|c", "a=25b=7cc"),
        ("\u00fc.", "=c3=bc=2e"),
        ("a" * 127, "a" * 127),
        ("|" * 66 + "aa", "=7c" * 66 + "aa"),
        ("|" * 67, "=7c" * 55 + "~8ec618b673c8b24bb99121bdddbb556b"),
        ("a" + "%" * 126, "a" + "=25" * 55 + "~0997344557ad12db55eb647228fe4f04"),
        ("ab" + "%" * 125, "ab" + "=25" * 55 + "~698a0a087319de8149c5b60c073d116b"),
        ("x" * 201, "x" * 167 + "~12bf1cc881648017342067435dc826c6"),
    ],
)
def test_folders_of_spaces(space: str, folder: str) -> None:
    """They stay as they are on stores, and a name that is too long for a folder has one too."""
    assert space_prefix(space) == f"spaces/{folder}/"
    check_key(f"{space_prefix(space)}{metadata_key(HOME, 1)}")


def test_no_two_spaces_share_a_folder() -> None:
    """Names that differ behind the part that is seen, and one that looks like a folder, too."""
    spaces = {"|" * count for count in range(1, 128)}
    spaces |= {"%" * 126 + last for last in "%|ab"}
    spaces |= {space_prefix("|" * 67)[len("spaces/") : -1], "\ud800"}
    assert len({space_prefix(space) for space in spaces}) == len(spaces) == 127 + 4 + 2


def test_an_object_of_one_queue_is_named_after_it() -> None:
    """An object of one queue lies in the queue's folder, in the order of its first offset."""
    plan = plan_object(
        AUTHOR, [queue_of(messages_of(3, 2, [9]))], PlanOptions(), ObjectKind.ONE_QUEUE
    )
    assert plan.key == (
        f"{HOME}/queues/00000007/00000003-00000002-0000000000000009-{plan.object_id:016x}.set"
    )


def test_a_damaged_body_is_not_uploaded() -> None:
    """A body that does not match its checksum stops the upload and is named."""
    plan = plan_object(AUTHOR, [queue_of(messages_of(1, 0, range(3)))], PlanOptions())
    writer = ObjectWriter(plan)
    writer.begin()
    bodies, terms, _ = data_of(plan.blocks[0])
    damaged = bytearray(bodies)
    damaged[50] ^= 1
    with pytest.raises(BodyDamagedError) as caught:
        writer.add(BlockData(bytes(damaged), terms))
    assert (caught.value.topic_id, caught.value.queue, caught.value.offset) == (1, 0, 1)


async def test_every_flipped_byte_is_found() -> None:
    """Opening an object or reading all of it fails, whatever byte of it is changed."""
    messages = messages_of(1, 0, range(6), keys=["k"])
    plan = plan_object(
        AUTHOR, [queue_of(messages), queue_of(messages_of(1, 1, [3, 5]))], PlanOptions(100)
    )
    data, ref = written(plan)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        with pytest.raises(DamagedObjectError):
            decode_header(bytes(damaged[:HEADER_BYTES]), ref.key)
            opened = await _opened(bytes(damaged), ref, tail_bytes=200)
            await _read_all(opened)
            await opened.search(key_hash("k"))


async def test_another_object_under_the_name_is_found() -> None:
    """A whole object that is not the committed one is refused, also one of the same length."""
    ours = plan_object(AUTHOR, [queue_of(messages_of(1, 0, range(5)))], PlanOptions())
    other = plan_object(AUTHOR, [queue_of(messages_of(2, 0, range(5)))], PlanOptions())
    data, _ = written(other)
    _, our_ref = written(ours)
    assert len(data) == our_ref.length
    with pytest.raises(DamagedObjectError, match="another object"):
        await _opened(data, our_ref)


async def test_a_cut_object_is_found() -> None:
    """An object that is shorter than what was committed is damaged, not at its end."""
    data, ref = written(plan_object(AUTHOR, [queue_of(messages_of(1, 0, range(5)))], PlanOptions()))
    with pytest.raises(DamagedObjectError, match="shorter"):
        await _opened(data[:-1], ref)


async def test_pieces_of_a_block_are_checked() -> None:
    """Messages read alone come whole, and damage in one is found without its block's checksum."""
    messages = messages_of(1, 0, range(8))
    data, ref = written(plan_object(AUTHOR, [queue_of(messages)], PlanOptions()))
    opened = await _opened(data, ref)
    entry = await opened.entry(0)
    columns = await opened.columns(entry)
    assert await opened.messages(columns, 2, 5) == [each.stored for each in messages[2:5]]
    damaged = bytearray(data)
    damaged[entry.bodies_position + columns.starts[3]] ^= 0x80
    opened = await _opened(bytes(damaged), ref)
    assert await opened.messages(columns, 0, 3) == [each.stored for each in messages[:3]]
    with pytest.raises(DamagedObjectError, match="offset 3"):
        await opened.messages(columns, 2, 5)


async def test_many_queues_fill_many_pages() -> None:
    """Every queue of a large stream set is found through the fences of its pages."""
    queues = [queue_of(messages_of(1, queue, [queue, queue + 1])) for queue in range(700)]
    plan = plan_object(AUTHOR, queues, PlanOptions(50))
    data, ref = written(plan)
    opened = await _opened(data, ref, tail_bytes=2_000)
    assert len(opened.root.pages) == 6
    for each in plan.ranges:
        for offset in range(each.first_offset, each.end_offset):
            entry = await opened.entry(await opened.find(each, offset))
            assert entry.queue == each.queue
            assert entry.base_offset <= offset < entry.end_offset


async def test_terms_are_found_in_search_pages() -> None:
    """Each id and key leads to the blocks that hold it, through several pages."""
    messages = [
        Message(1, 0, offset, body_bytes=10, keys=[f"key-{offset}", f"of-{offset % 50}"])
        for offset in range(3_000)
    ]
    plan = plan_object(AUTHOR, [queue_of(messages)], PlanOptions(2_000))
    data, ref = written(plan)
    opened = await _opened(data, ref)
    assert len(opened.root.search_pages) > 3
    entries = await opened.entries(0, opened.root.block_count)

    async def blocks_with(hash_value: int) -> list[int]:
        return sorted(set(await opened.search(hash_value)))

    for offset in range(0, 3_000, 7):
        (number,) = await blocks_with(key_hash(f"key-{offset}"))
        assert entries[number].base_offset <= offset < entries[number].end_offset
        assert await blocks_with(id_hash(messages[offset].packed_id)) == [number]
    holding = [
        number
        for number, entry in enumerate(entries)
        if any(offset % 50 == 3 for offset in range(entry.base_offset, entry.end_offset))
    ]
    assert await blocks_with(key_hash("of-3")) == holding
    assert await blocks_with(key_hash("nobody")) == []


def test_tags_of_a_block_pass_over_nothing_that_matches() -> None:
    """A block says of each of its tags that it may hold it, and of most others that it does not."""
    messages = [replace(each, tag=f"T{each.offset % 3}") for each in messages_of(1, 0, range(30))]
    writer = ObjectWriter(plan := plan_object(AUTHOR, [queue_of(messages)], PlanOptions()))
    writer.begin()
    writer.add(data_of(plan.blocks[0]))
    (entry,) = writer._entries
    assert all(entry.may_hold_tag([text_hash(f"T{number}")]) for number in range(3))
    strangers = sum(entry.may_hold_tag([text_hash(f"U{number}")]) for number in range(1_000))
    assert strangers < 50
    assert not entry.may_hold_tag([])


def test_terms_are_cut_and_joined() -> None:
    """Terms of part of the messages are theirs alone, and joined parts are the whole again."""
    ids = b"".join(bytes([number]) * 17 for number in range(4))
    terms = SearchTerms(ids, b"\2\0\1\3", array("Q", range(6)))
    parts = [terms.part(first, first + 1) for first in range(4)]
    assert [list(part.key_hashes) for part in parts] == [[0, 1], [], [2], [3, 4, 5]]
    assert SearchTerms.joined(parts) == terms
    assert id_hashes(terms.ids) == [id_hash(part.ids) for part in parts]
