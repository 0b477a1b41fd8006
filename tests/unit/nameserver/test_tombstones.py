"""Tombstones that deletions leave (rule 17): with the row, until confirmed, within a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import Nameserver

TOPIC = meta_pb2.TOMBSTONE_KIND_TOPIC
CONSUMER_GROUP = meta_pb2.TOMBSTONE_KIND_CONSUMER_GROUP


async def tombstones(nameserver: Nameserver) -> dict[tuple[int, int], meta_pb2.Tombstone]:
    """All tombstones by kind and id."""
    _, rows = await nameserver.metadata.snapshot()
    found = [row.tombstone for row in rows if row.HasField("tombstone")]
    return {(tombstone.kind, tombstone.id): tombstone for tombstone in found}


async def make_and_delete(nameserver: Nameserver, name: str) -> int:
    """Make a topic, delete it, return the id it had."""
    topic = meta_pb2.Topic(name=name, namespace="shop", queue_count=1)
    made = await nameserver.metadata.create_topic(topic)
    await nameserver.metadata.delete_topic("shop", name)
    return made.topic_id


async def test_row_and_tombstone_are_one_entry(nameserver: Nameserver) -> None:
    """No crash can lie between the deletion of a topic and its tombstone."""
    topic_id = await make_and_delete(nameserver, "t")
    command = command_pb2.Command.FromString(b"".join(nameserver.replica.entries[-1].payload))
    assert {change.WhichOneof("row") for change in command.changes} == {"topic", "tombstone"}
    assert await tombstones(nameserver) == {
        (TOPIC, topic_id): meta_pb2.Tombstone(
            kind=TOPIC,
            id=topic_id,
            namespace="shop",
            name="t",
            deleted_at_ms=nameserver.clock.wall_ms(),
            revision=nameserver.machine.revision,
        )
    }


async def test_a_consumer_group_leaves_two(nameserver: Nameserver) -> None:
    """Its own and that of its dead-letter topic."""
    group = await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    await nameserver.metadata.delete_consumer_group("", "g")
    left = await tombstones(nameserver)
    assert {key: tombstone.name for key, tombstone in left.items()} == {
        (CONSUMER_GROUP, group.consumer_group_id): "g",
        (TOPIC, group.dead_letter_topic_id): "%DLQ%g",
    }


async def test_a_confirmation_marks_it_done_once(nameserver: Nameserver) -> None:
    """Confirming again, or what never was, changes nothing; a missing kind is INVALID."""
    topic_id = await make_and_delete(nameserver, "t")
    await nameserver.metadata.confirm_dropped(TOPIC, topic_id)
    assert (await tombstones(nameserver))[TOPIC, topic_id].done
    revision = nameserver.machine.revision
    await nameserver.metadata.confirm_dropped(TOPIC, topic_id)
    await nameserver.metadata.confirm_dropped(CONSUMER_GROUP, topic_id)
    assert nameserver.machine.revision == revision
    with pytest.raises(MetaRefused, match="kind is missing"):
        await nameserver.metadata.confirm_dropped(0, topic_id)  # type: ignore[arg-type]


async def test_a_name_can_be_buried_many_times(nameserver: Nameserver) -> None:
    """Tombstones go by id: a topic made again under its old name has nothing to do with them."""
    first = await make_and_delete(nameserver, "t")
    second = await make_and_delete(nameserver, "t")
    assert set(await tombstones(nameserver)) == {(TOPIC, first), (TOPIC, second)}


async def test_only_done_ones_make_room(small_nameserver: Nameserver) -> None:
    """At the limit the one done for longest goes; with none done the deletion is refused whole."""
    nameserver = await small_nameserver.with_storage()
    first = await make_and_delete(nameserver, "a")
    second = await make_and_delete(nameserver, "b")
    with pytest.raises(MetaRefused, match=r"2 deleted .* \(nameserver.max_tombstones\)") as refused:
        await make_and_delete(nameserver, "c")
    assert refused.value.outcome == meta_pb2.META_OUTCOME_LIMIT_REACHED
    assert set(await tombstones(nameserver)) == {(TOPIC, first), (TOPIC, second)}
    await nameserver.metadata.confirm_dropped(TOPIC, second)
    await nameserver.metadata.confirm_dropped(TOPIC, first)
    restarted = nameserver.restarted()
    await restarted.metadata.delete_topic("shop", "c")
    assert set(await tombstones(restarted)) == {(TOPIC, first), (TOPIC, first + 2)}
    assert restarted.machine.speculative.counters.tombstone_count == 2


async def test_two_at_once_make_room_for_two(small_nameserver: Nameserver) -> None:
    """A consumer group needs two places; it is refused when only one can be made."""
    nameserver = await small_nameserver.with_storage()
    await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    first = await make_and_delete(nameserver, "a")
    second = await make_and_delete(nameserver, "b")
    await nameserver.metadata.confirm_dropped(TOPIC, first)
    with pytest.raises(MetaRefused, match="still to be dropped"):
        await nameserver.metadata.delete_consumer_group("", "g")
    await nameserver.metadata.confirm_dropped(TOPIC, second)
    await nameserver.metadata.delete_consumer_group("", "g")
    assert {tombstone.name for tombstone in (await tombstones(nameserver)).values()} == {
        "g",
        "%DLQ%g",
    }
