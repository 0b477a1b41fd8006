"""Consumer groups and the dead-letter topics that come and go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import Nameserver


def group(name: str = "billing", **fields: object) -> meta_pb2.ConsumerGroup:
    return meta_pb2.ConsumerGroup(name=name, **fields)  # type: ignore[arg-type]


def exponential(initial_ms: int, max_ms: int, multiplier: float) -> meta_pb2.ConsumerGroup:
    return group(
        exponential=meta_pb2.ExponentialBackoff(
            initial_ms=initial_ms, max_ms=max_ms, multiplier=multiplier
        )
    )


async def test_a_group_and_its_dead_letter_topic_are_one_change(nameserver: Nameserver) -> None:
    """Both rows have the same revision, and the group knows the topic's id (rule 26)."""
    made = await nameserver.metadata.create_consumer_group(group())
    _, rows = await nameserver.metadata.snapshot()
    topics = [row.topic for row in rows if row.HasField("topic")]

    assert [topic.name for topic in topics] == ["%DLQ%billing"]
    assert topics[0].type == meta_pb2.TOPIC_TYPE_DEAD_LETTER
    assert topics[0].topic_id == made.dead_letter_topic_id == 1
    assert topics[0].revision == made.revision == nameserver.machine.revision
    assert (made.consumer_group_id, made.max_attempts) == (1, 17)


async def test_deleting_a_group_deletes_its_dead_letter_topic(nameserver: Nameserver) -> None:
    """Nothing of a deleted group is left, and a new one of that name has new ids."""
    first = await nameserver.metadata.create_consumer_group(group())
    await nameserver.metadata.delete_consumer_group("", "billing")
    _, rows = await nameserver.metadata.snapshot()
    second = await nameserver.metadata.create_consumer_group(group())

    assert not [row for row in rows if row.HasField("topic") or row.HasField("consumer_group")]
    assert second.consumer_group_id == first.consumer_group_id + 1
    assert second.dead_letter_topic_id == first.dead_letter_topic_id + 1


async def test_a_dead_letter_topic_is_guarded(nameserver: Nameserver) -> None:
    """It cannot be deleted or grown by itself, but its retention can change."""
    await nameserver.metadata.create_consumer_group(group())
    wanted = meta_pb2.Topic(name="%DLQ%billing", queue_count=4, retention_ms=60_000)
    with pytest.raises(MetaRefused, match="deleted with its consumer group"):
        await nameserver.metadata.delete_topic("", "%DLQ%billing")
    with pytest.raises(MetaRefused, match="of a dead-letter topic are fixed"):
        await nameserver.metadata.update_topic(wanted, ["queue_count"])
    changed = await nameserver.metadata.update_topic(wanted, ["retention_ms"])

    assert (changed.retention_ms, changed.queue_count) == (60_000, 0)


async def test_backoff_is_changed_as_a_whole(nameserver: Nameserver) -> None:
    """Naming `backoff` in a mask replaces one kind by the other, or takes it away."""
    await nameserver.metadata.create_consumer_group(exponential(1_000, 60_000, 2.0))
    customized = group(customized=meta_pb2.CustomizedBackoff(next_ms=[10, 20]))
    changed = await nameserver.metadata.update_consumer_group(customized, ["backoff"])
    cleared = await nameserver.metadata.update_consumer_group(group(), ["backoff"])

    assert list(changed.customized.next_ms) == [10, 20]
    assert changed.WhichOneof("backoff") == "customized"
    assert cleared.WhichOneof("backoff") is None


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (group("a b"), "illegal characters"),
        (group("x" * 121), "120"),
        (group(max_attempts=1_001), "1001 attempts, allowed are 1 to 1000"),
        (exponential(0, 10, 2.0), "exponential backoff"),
        (exponential(20, 10, 2.0), "exponential backoff"),
        (exponential(1, 10, 0.5), "exponential backoff"),
        (exponential(1, 10, float("nan")), "exponential backoff"),
        (group(customized=meta_pb2.CustomizedBackoff()), "customized backoff"),
        (group(customized=meta_pb2.CustomizedBackoff(next_ms=[2**60])), "customized backoff"),
        (group(lite_topic="none"), "topic none does not exist"),
        (group(lite_topic="plain"), "topic plain is not of type LITE"),
    ],
)
async def test_a_refused_group_says_why(
    nameserver: Nameserver, wanted: meta_pb2.ConsumerGroup, reason: str
) -> None:
    """A consumer group that cannot be kept is refused with a clear text, and no row is written."""
    await nameserver.metadata.create_topic(meta_pb2.Topic(name="plain"))
    with pytest.raises(MetaRefused, match=reason):
        await nameserver.metadata.create_consumer_group(wanted)
    _, rows = await nameserver.metadata.snapshot()

    assert not [row for row in rows if row.HasField("consumer_group")]


async def test_the_limit_on_groups_holds(small_nameserver: Nameserver) -> None:
    """One more than allowed is LIMIT_REACHED; a deletion makes room."""
    await small_nameserver.metadata.create_consumer_group(group("a"))
    with pytest.raises(MetaRefused, match="1 consumer groups already"):
        await small_nameserver.metadata.create_consumer_group(group("b"))
    await small_nameserver.metadata.delete_consumer_group("", "a")
    await small_nameserver.metadata.create_consumer_group(group("b"))


async def test_what_exists_is_not_made_again(nameserver: Nameserver) -> None:
    """A second group of a name is ALREADY_EXISTS; an unknown one NOT_FOUND."""
    await nameserver.metadata.create_consumer_group(group())
    with pytest.raises(MetaRefused, match="billing exists already"):
        await nameserver.metadata.create_consumer_group(group())
    with pytest.raises(MetaRefused, match="consumer group none does not exist"):
        await nameserver.metadata.delete_consumer_group("", "none")


async def test_topics_in_pop_mode_are_kept_once_and_bounded(nameserver: Nameserver) -> None:
    """The list is replaced as a whole, sorted; a list that is too long changes nothing."""
    await nameserver.metadata.create_consumer_group(group())
    wanted = group(pop_topics=["b", "a", "b"])
    changed = await nameserver.metadata.update_consumer_group(wanted, ["pop_topics"])
    assert list(changed.pop_topics) == ["a", "b"]
    too_many = group(pop_topics=[f"t{number}" for number in range(65)])
    with pytest.raises(MetaRefused, match="65 topics in POP mode, allowed are 64"):
        await nameserver.metadata.update_consumer_group(too_many, ["pop_topics"])
    cleared = await nameserver.metadata.update_consumer_group(group(), ["pop_topics"])
    assert not cleared.pop_topics
