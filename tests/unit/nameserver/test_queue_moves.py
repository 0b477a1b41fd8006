"""Queue overrides: wished for by operators, recorded by reports, forgotten with their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.requests import TABLE_PREFIX
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.plans.new_queues import Avoidance
from strata_state.metadata_keys import MetadataRowKind, kind_range

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


@pytest.fixture
async def topic(nameserver: Nameserver) -> meta_pb2.Topic:
    """A topic whose queues are in raft groups 1 and 2."""
    return await nameserver.metadata.create_topic(meta_pb2.Topic(name="t", queue_count=2))


def home_of(nameserver: Nameserver, topic: meta_pb2.Topic, queue: int) -> int:
    owners = nameserver.machine.speculative.topology.slot_owners
    return owners[(topic.slot_base + queue) % 4_096]


async def move(nameserver: Nameserver, queue: int, target: int) -> meta_pb2.QueueOverride:
    return await nameserver.metadata.move_queue(
        meta_pb2.MoveQueueRequest(topic="t", queue=queue, to_raft_group=target)
    )


async def moved(
    nameserver: Nameserver, topic: meta_pb2.Topic, epoch: int, start_offset: int, target: int
) -> meta_pb2.QueueOverride:
    return await nameserver.metadata.queue_moved(
        meta_pb2.ReportQueueMovedRequest(
            topic_id=topic.topic_id,
            queue=0,
            opened=meta_pb2.Epoch(epoch=epoch, start_offset=start_offset, raft_group=target),
        )
    )


async def test_a_move_is_wished_reported_and_drained(
    nameserver: Nameserver, topic: meta_pb2.Topic
) -> None:
    """Epoch 0 is where the slot is; each report adds one, draining takes the oldest off."""
    home = home_of(nameserver, topic, 0)
    other = 3 - home
    wished = await move(nameserver, 0, other)
    assert wished.moving_to == other
    assert list(wished.epochs) == [meta_pb2.Epoch(raft_group=home)]
    assert await move(nameserver, 0, other) == wished

    opened = await moved(nameserver, topic, 1, 40, other)
    again = await moved(nameserver, topic, 1, 40, other)
    assert opened == again
    assert opened.moving_to == 0
    assert [(e.epoch, e.start_offset, e.raft_group) for e in opened.epochs] == [
        (0, 0, home),
        (1, 40, other),
    ]
    drained = await nameserver.metadata.queue_drained(
        meta_pb2.ReportQueueDrainedRequest(topic_id=topic.topic_id, queue=0, epoch=1)
    )
    assert [epoch.epoch for epoch in drained.epochs] == [1]
    _, rows = await nameserver.metadata.snapshot()
    assert drained in [row.queue_override for row in rows]


async def test_a_move_that_cannot_be_is_refused(
    nameserver: Nameserver, topic: meta_pb2.Topic
) -> None:
    """Unknown things, moves to where it is or was, and a second wish before the first is done."""
    home = home_of(nameserver, topic, 0)
    other = 3 - home
    with pytest.raises(MetaRefused, match="has 2 queues"):
        await move(nameserver, 2, other)
    with pytest.raises(MetaRefused, match="raft group 99 does not exist"):
        await move(nameserver, 0, 99)
    with pytest.raises(MetaRefused, match=f"is in raft group {home} already"):
        await move(nameserver, 0, home)
    assert nameserver.machine.speculative.counters.queue_override_count == 0
    await move(nameserver, 0, other)
    with pytest.raises(MetaRefused, match="is on its way"):
        await move(nameserver, 0, home)
    with pytest.raises(MetaRefused, match="does not follow"):
        await moved(nameserver, topic, 2, 40, other)
    await moved(nameserver, topic, 1, 40, other)
    with pytest.raises(MetaRefused, match="still being drained"):
        await move(nameserver, 0, home)


async def test_overrides_go_with_their_topic(nameserver: Nameserver, topic: meta_pb2.Topic) -> None:
    """The row and its place under the limit; a late report finds nothing."""
    await move(nameserver, 0, 3 - home_of(nameserver, topic, 0))
    assert nameserver.machine.speculative.counters.queue_override_count == 1
    await nameserver.metadata.delete_topic("", "t")
    _, rows = await nameserver.metadata.snapshot()

    assert not [row for row in rows if row.HasField("queue_override")]
    assert nameserver.machine.speculative.counters.queue_override_count == 0
    with pytest.raises(MetaRefused, match="was never moved"):
        await moved(nameserver, topic, 1, 40, 2)


async def test_the_limit_on_overrides_holds(make_nameserver: MakeNameserver) -> None:
    """One more than allowed is LIMIT_REACHED."""
    config = NameserverConfig(max_queue_overrides=1).alone()
    nameserver = await make_nameserver(config).with_storage()
    topic = await nameserver.metadata.create_topic(meta_pb2.Topic(name="t", queue_count=2))
    await move(nameserver, 0, 3 - home_of(nameserver, topic, 0))
    with pytest.raises(MetaRefused, match="max_queue_overrides"):
        await move(nameserver, 1, 3 - home_of(nameserver, topic, 1))


async def test_a_queue_is_explained(nameserver: Nameserver, topic: meta_pb2.Topic) -> None:
    """Slot, epochs, raft group and nodes, one line each."""
    home = home_of(nameserver, topic, 0)
    await move(nameserver, 0, 3 - home)
    lines = await nameserver.metadata.explain_queue("", "t", 0)

    assert lines == [
        f"slot {topic.slot_base} = ({topic.slot_base} + 0) mod 4096 is owned by raft group "
        f"{home}; slots are spread evenly over the raft groups",
        f"epoch 0 from offset 0 is in raft group {home}",
        f"it is moving to raft group {3 - home}",
        f"raft group {home} has a replica on storage-a (up)",
        "new queues avoid no node; measured loads count: there is no model",
    ]


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        (meta_pb2.Topic(name=f"{TABLE_PREFIX}t"), "key-value tables"),
        (meta_pb2.Topic(name="lite", type=meta_pb2.TOPIC_TYPE_LITE), "type LITE"),
        (meta_pb2.Topic(name="t", queue_count=2), ""),
    ],
)
async def test_new_queues_that_stay_are_not_steered_away(
    nameserver: Nameserver, monkeypatch: pytest.MonkeyPatch, wanted: meta_pb2.Topic, what: str
) -> None:
    """Tables and lite topics have rows in one raft group: whatever it bears, they are made there.

    One by one or many at once; queues of messages are wished to a calm raft group.
    """
    avoidance = Avoidance(frozenset({1, 2}), (2,))
    monkeypatch.setattr(nameserver.metadata.placement, "avoidance", lambda: avoidance)
    one = await nameserver.metadata.create_topic(wanted)
    await nameserver.metadata.create_topics(
        [meta_pb2.Topic(name=f"{wanted.name}-2", type=wanted.type, queue_count=1)]
    )
    rows = map(
        meta_pb2.QueueOverride.FromString,
        nameserver.machine.rows(*kind_range(MetadataRowKind.QUEUE_OVERRIDE)),
    )
    steered = [(row.topic_id, row.moving_to) for row in rows]
    if not what:
        assert steered == [(one.topic_id, 2), (one.topic_id, 2), (one.topic_id + 1, 2)]
        return
    assert steered == []
    with pytest.raises(MetaRefused, match=f"{what} stay in their raft group"):
        await nameserver.metadata.move_queue(
            meta_pb2.MoveQueueRequest(topic=one.name, queue=0, to_raft_group=2)
        )
