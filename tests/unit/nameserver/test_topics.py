"""Lives of topics: ids, revisions, homes, limits, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.requests import TRACE_TOPIC
from strata_mq.requests.types import MAX_PRIORITY_LEVELS
from strata_mq.slots import slot_base, slot_of

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import Nameserver


Outcome = meta_pb2.MetaOutcome


def topic(name: str = "orders", namespace: str = "", **fields: object) -> meta_pb2.Topic:
    return meta_pb2.Topic(name=name, namespace=namespace, **fields)  # type: ignore[arg-type]


async def test_a_topic_gets_id_times_defaults_and_homes(nameserver: Nameserver) -> None:
    """Fields left out are set, and every queue has a home in queue order (rule 20)."""
    made = await nameserver.metadata.create_topic(topic())

    assert made.topic_id == 1
    assert (made.type, made.queue_count) == (meta_pb2.TOPIC_TYPE_NORMAL, 8)
    assert made.retention_ms == 72 * 3_600_000
    assert made.created_at_ms == made.updated_at_ms == nameserver.clock.wall_ms()
    assert made.slot_base == slot_base("", "orders", google_crc32c.value)
    owners = nameserver.machine.speculative.topology.slot_owners
    assert {home.raft_group: list(home.queues) for home in made.homes} == {
        raft_group: [q for q in range(8) if owners[slot_of(made.slot_base, q)] == raft_group]
        for raft_group in (1, 2)
    }
    assert [len(home.queues) for home in made.homes] == [4, 4]


async def test_the_topic_of_traces_may_be_made(nameserver: Nameserver) -> None:
    """It is the only one of RocketMQ's system topics."""
    made = await nameserver.metadata.create_topic(topic(TRACE_TOPIC, queue_count=1))
    assert (made.name, made.queue_count) == (TRACE_TOPIC, 1)
    with pytest.raises(MetaRefused, match="cannot access system topic"):
        await nameserver.metadata.create_topic(topic("RMQ_SYS_OTHER"))


async def test_every_change_raises_the_revision_by_one(nameserver: Nameserver) -> None:
    """A row's revision is that of its last change, and revisions have no gap."""
    start = nameserver.machine.revision
    first = await nameserver.metadata.create_topic(topic("a"))
    second = await nameserver.metadata.create_topic(topic("b"))
    changed = await nameserver.metadata.update_topic(
        topic("a", retention_ms=60_000), ["retention_ms"]
    )

    assert [first.revision, second.revision, changed.revision] == [start + 1, start + 2, start + 3]
    assert nameserver.machine.revision == start + 3


async def test_ids_are_never_given_twice(nameserver: Nameserver) -> None:
    """Neither a deletion nor a restart brings an id back."""
    first = await nameserver.metadata.create_topic(topic("a"))
    await nameserver.metadata.delete_topic("", "a")
    second = await nameserver.metadata.create_topic(topic("a"))
    await nameserver.metadata.delete_topic("", "a")
    third = await nameserver.restarted().metadata.create_topic(topic("a"))

    assert [first.topic_id, second.topic_id, third.topic_id] == [1, 2, 3]


async def test_namespaces_isolate(nameserver: Nameserver) -> None:
    """The same name in two namespaces is two topics; deleting one leaves the other."""
    await nameserver.metadata.create_topic(topic(namespace="a"))
    await nameserver.metadata.create_topic(topic(namespace="b"))
    await nameserver.metadata.delete_topic("a", "orders")

    _, rows = await nameserver.metadata.snapshot()
    assert [(row.topic.namespace, row.topic.name) for row in rows if row.HasField("topic")] == [
        ("b", "orders")
    ]


async def test_queues_may_grow_and_keep_their_names(nameserver: Nameserver) -> None:
    """New queues are appended to the homes; fewer queues are refused (rule 20)."""
    before = await nameserver.metadata.create_topic(topic(queue_count=3))
    after = await nameserver.metadata.update_topic(topic(queue_count=6), ["queue_count"])

    for old in before.homes:
        new = next(home for home in after.homes if home.raft_group == old.raft_group)
        assert list(new.queues)[: len(old.queues)] == list(old.queues)
    assert sorted(queue for home in after.homes for queue in home.queues) == list(range(6))
    with pytest.raises(MetaRefused, match="has 6 queues; their number may only grow"):
        await nameserver.metadata.update_topic(topic(queue_count=5), ["queue_count"])


@pytest.mark.parametrize(
    "kind",
    [
        meta_pb2.TOPIC_TYPE_FIFO,
        meta_pb2.TOPIC_TYPE_DELAY,
        meta_pb2.TOPIC_TYPE_TRANSACTION,
        meta_pb2.TOPIC_TYPE_MIXED,
    ],
)
async def test_a_topic_with_message_groups_grows_in_two_steps(
    nameserver: Nameserver, kind: meta_pb2.TopicType.ValueType
) -> None:
    """The old queue count stays until brokers confirm that it is not needed (rule 23)."""
    metadata = nameserver.metadata
    made = await metadata.create_topic(topic(type=kind, queue_count=4))
    grown = await metadata.update_topic(topic(queue_count=8), ["queue_count"])
    assert (grown.queue_count, grown.previous_queue_count) == (8, 4)
    with pytest.raises(MetaRefused) as refused:
        await metadata.update_topic(topic(queue_count=16), ["queue_count"])
    assert refused.value.outcome == Outcome.META_OUTCOME_CONFLICT
    kept = await metadata.update_topic(topic(retention_ms=60_000), ["retention_ms"])
    assert kept.previous_queue_count == 4

    confirm = meta_pb2.ConfirmRehashedRequest(topic_id=made.topic_id, name="orders", queue_count=7)
    assert (await metadata.confirm_rehashed(confirm)).previous_queue_count == 4
    confirm.queue_count = 8
    assert (await metadata.confirm_rehashed(confirm)).previous_queue_count == 0
    revision = nameserver.machine.revision
    await metadata.confirm_rehashed(confirm)
    assert nameserver.machine.revision == revision
    wider = await metadata.update_topic(topic(queue_count=16), ["queue_count"])
    assert (wider.queue_count, wider.previous_queue_count) == (16, 8)


async def test_a_topic_that_had_message_groups_grows_in_two_steps(nameserver: Nameserver) -> None:
    """The type may be any while it grows: its queues still hold messages of the FIFO topic."""
    metadata = nameserver.metadata
    await metadata.create_topic(topic(type=meta_pb2.TOPIC_TYPE_FIFO, queue_count=4))
    await metadata.update_topic(topic(type=meta_pb2.TOPIC_TYPE_NORMAL), ["type"])
    await metadata.update_topic(topic(queue_count=8), ["queue_count"])
    again = await metadata.update_topic(topic(type=meta_pb2.TOPIC_TYPE_FIFO), ["type"])
    assert (again.queue_count, again.previous_queue_count) == (8, 4)


async def test_a_topic_that_changes_its_type_while_it_grows_keeps_its_old_count(
    nameserver: Nameserver,
) -> None:
    """The messages that are there had message groups."""
    metadata = nameserver.metadata
    await metadata.create_topic(topic(type=meta_pb2.TOPIC_TYPE_DELAY, queue_count=4))
    wanted = topic(type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=8)
    grown = await metadata.update_topic(wanted, ["type", "queue_count"])
    assert grown.previous_queue_count == 4


async def test_a_parent_of_lite_topics_keeps_its_queues_and_its_type(
    nameserver: Nameserver,
) -> None:
    """Names of lite topics choose the queues, and messages of lite topics have no others."""
    metadata = nameserver.metadata
    kind = meta_pb2.TOPIC_TYPE_LITE
    wrong = topic("short", type=kind, attributes={"lite.topic.expiration": "0"})
    with pytest.raises(MetaRefused, match="a number of minutes, 1 to"):
        await metadata.create_topic(wrong)
    made = await metadata.create_topic(
        topic("parent", type=kind, queue_count=4, attributes={"lite.topic.expiration": "-1"})
    )
    assert (made.type, made.queue_count) == (meta_pb2.TOPIC_TYPE_LITE, 4)
    with pytest.raises(MetaRefused, match="the number of its queues is fixed"):
        await metadata.update_topic(topic("parent", queue_count=8), ["queue_count"])
    await metadata.create_topic(topic("plain", queue_count=4))
    for name, other in (("parent", meta_pb2.TOPIC_TYPE_NORMAL), ("plain", kind)):
        with pytest.raises(MetaRefused, match="no topic becomes one of type LITE"):
            await metadata.update_topic(topic(name, type=other), ["type"])


async def test_a_priority_topic_has_as_many_queues_as_there_are_levels(
    nameserver: Nameserver,
) -> None:
    """Not as a new one, by growing, or out of another one."""
    metadata = nameserver.metadata
    kind = meta_pb2.TOPIC_TYPE_PRIORITY
    made = await metadata.create_topic(topic("levels", type=kind, queue_count=MAX_PRIORITY_LEVELS))
    assert (made.type, made.queue_count) == (kind, MAX_PRIORITY_LEVELS)
    await metadata.create_topic(topic("wide", queue_count=MAX_PRIORITY_LEVELS + 1))
    for wrong in (
        metadata.create_topic(topic("more", type=kind, queue_count=MAX_PRIORITY_LEVELS + 1)),
        metadata.update_topic(topic("levels", queue_count=65), ["queue_count"]),
        metadata.update_topic(topic("wide", type=kind), ["type"]),
    ):
        with pytest.raises(MetaRefused, match="65 queues; a topic of type PRIORITY may have 64"):
            await wrong


async def test_a_topic_without_message_groups_grows_at_once(nameserver: Nameserver) -> None:
    """Its messages may take any queue."""
    await nameserver.metadata.create_topic(topic(queue_count=4))
    for queue_count in (8, 16):
        grown = await nameserver.metadata.update_topic(
            topic(queue_count=queue_count), ["queue_count"]
        )
        assert (grown.queue_count, grown.previous_queue_count) == (queue_count, 0)


async def test_an_update_changes_only_what_its_mask_names(nameserver: Nameserver) -> None:
    """A field outside the mask keeps its value, whatever the request holds there."""
    await nameserver.metadata.create_topic(topic(attributes={"team": "a"}))
    wanted = topic(retention_ms=5_000, type=meta_pb2.TOPIC_TYPE_FIFO, attributes={"team": "b"})
    changed = await nameserver.metadata.update_topic(wanted, ["attributes", "type"])

    assert dict(changed.attributes) == {"team": "b"}
    assert changed.type == meta_pb2.TOPIC_TYPE_FIFO
    assert changed.retention_ms == 72 * 3_600_000


async def test_the_level_of_the_tier_is_kept_under_one_name(nameserver: Nameserver) -> None:
    """Both names are taken, in any case; other attributes stay as they are."""
    made = await nameserver.metadata.create_topic(
        topic(attributes={"tieredStorageLevel": "not_in_mem", "team": "a"})
    )
    assert dict(made.attributes) == {"tiered_storage_level": "NOT_IN_MEM", "team": "a"}
    wanted = topic(attributes={"tiered_storage_level": "force"})
    changed = await nameserver.metadata.update_topic(wanted, ["attributes"])
    assert dict(changed.attributes) == {"tiered_storage_level": "FORCE"}


async def test_an_update_of_another_revision_is_a_conflict(nameserver: Nameserver) -> None:
    """A caller that read an older revision is told so, and nothing changes."""
    made = await nameserver.metadata.create_topic(topic())
    wanted = topic(retention_ms=5_000, revision=made.revision)
    changed = await nameserver.metadata.update_topic(wanted, ["retention_ms"])
    with pytest.raises(MetaRefused) as refused:
        await nameserver.metadata.update_topic(wanted, ["retention_ms"])

    assert refused.value.outcome == Outcome.META_OUTCOME_CONFLICT
    assert f"has revision {changed.revision}," in refused.value.reason


@pytest.mark.parametrize(
    ("wanted", "outcome", "reason"),
    [
        (topic(""), "INVALID", "blank"),
        (topic("a b"), "INVALID", "illegal characters"),
        (topic("x" * 128), "INVALID", "127"),
        (topic(namespace="a/b"), "INVALID", "illegal characters"),
        (topic("%DLQ%g"), "INVALID", "come with their consumer group"),
        (topic(type=meta_pb2.TOPIC_TYPE_DEAD_LETTER), "INVALID", "unknown type"),
        (topic(type=99), "INVALID", "unknown type"),
        (topic(queue_count=1_025), "INVALID", "allowed are 1 to 1024"),
        (topic(retention_ms=1), "INVALID", "retention of 1 ms"),
        (topic(attributes={"k": "v" * 16_384}), "INVALID", "bytes of attributes"),
        (topic(attributes={"tieredStorageLevel": "NEVER"}), "INVALID", "none of DISABLE"),
        (topic(attributes={"local_retention_ms": "1h"}), "INVALID", "no number of ms"),
        (topic("taken"), "ALREADY_EXISTS", "topic taken exists already"),
    ],
)
async def test_a_refused_creation_says_why_and_changes_nothing(
    nameserver: Nameserver, wanted: meta_pb2.Topic, outcome: str, reason: str
) -> None:
    """A refusal has its outcome and a clear text; no id and no revision is used up."""
    await nameserver.metadata.create_topic(topic("taken"))
    before = dict(nameserver.store.scan(b"", b"\xff"))
    with pytest.raises(MetaRefused, match=reason) as refused:
        await nameserver.metadata.create_topic(wanted)

    assert refused.value.outcome == Outcome.Value(f"META_OUTCOME_{outcome}")
    assert dict(nameserver.store.scan(b"", b"\xff")) == before


async def test_what_does_not_exist_is_not_found(nameserver: Nameserver) -> None:
    """Changing or deleting an unknown topic is NOT_FOUND with its name and namespace."""
    for call in (
        nameserver.metadata.delete_topic("shop", "none"),
        nameserver.metadata.update_topic(topic("none", "shop"), ["type"]),
    ):
        with pytest.raises(MetaRefused, match="topic none of namespace shop does not exist"):
            await call


@pytest.mark.parametrize("mask", [[], ["name"], ["retention_ms", "topic_id"]])
async def test_a_mask_of_what_cannot_change_is_refused(
    nameserver: Nameserver, mask: list[str]
) -> None:
    """An empty mask and fields that are fixed are INVALID, and the text lists what can change."""
    await nameserver.metadata.create_topic(topic())
    with pytest.raises(MetaRefused, match="queue_count, retention_ms, type, attributes"):
        await nameserver.metadata.update_topic(topic(), mask)


async def test_limits_hold_and_a_deletion_makes_room(small_nameserver: Nameserver) -> None:
    """The limit on topics counts what exists, not what was ever made."""
    metadata = (await small_nameserver.with_storage()).metadata
    for name in "abc":
        await metadata.create_topic(topic(name, queue_count=1))
    with pytest.raises(MetaRefused, match=r"3 topics already \(nameserver.max_topics\)"):
        await metadata.create_topic(topic("d", queue_count=1))
    await metadata.delete_topic("", "a")
    await metadata.create_topic(topic("d", queue_count=1))
    with pytest.raises(MetaRefused, match="allowed are 1 to 4"):
        await metadata.create_topic(topic("e", queue_count=5))


async def test_without_storage_there_is_no_topic(small_nameserver: Nameserver) -> None:
    """Before a storage node registered a topic has nowhere to live: UNAVAILABLE."""
    with pytest.raises(MetaRefused, match="no storage node has registered yet") as refused:
        await small_nameserver.metadata.create_topic(topic(queue_count=1))

    assert refused.value.outcome == Outcome.META_OUTCOME_UNAVAILABLE
