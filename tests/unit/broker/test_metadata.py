"""The metadata view, its watch, and creation on first use."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.metadata.metadata import MetadataView, Name
from strata_mq.slots import slot_of, striped_slots
from strata_testing import until
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_meta import FakeMeta


def view_of(meta: FakeMeta) -> MetadataView:
    """A view that took in everything."""
    view = MetadataView()
    view.apply(meta_pb2.WatchResponse(revision=meta.revision, snapshot=True, changes=meta.rows))
    return view


def test_topics_are_found_by_namespace_and_name_and_by_id(meta: FakeMeta) -> None:
    """The same name in two namespaces is two topics."""
    other = meta.add_topic("orders", namespace="tenant")
    view = view_of(meta)
    here, there = view.topic("", "orders"), view.topic("tenant", "orders")
    assert here is not None
    assert there is not None
    assert here.topic_id != there.topic_id == other.topic_id
    assert view.topic_by_id(other.topic_id) is there
    assert there.parsed() == other


def test_queues_belong_to_the_raft_group_of_their_slot(meta: FakeMeta) -> None:
    """Owner by slot, homes cover each queue once, owners are their union."""
    topic = view_of(meta).topic("", "orders")
    assert topic is not None
    view = view_of(meta)
    slots = striped_slots((1, 2))
    for queue in range(topic.queue_count):
        assert view.owner(topic, queue) == slots[slot_of(topic.slot_base, queue)]
    assert view.owners(topic) == (1, 2)
    homes = view.homes(topic)
    assert sorted(queue for home in homes for queue in home.queues) == [0, 1, 2, 3]
    assert [home.broker_name for home in homes] == ["strata-1", "strata-2"]


def test_a_changed_slot_moves_queues_but_not_their_public_names(meta: FakeMeta) -> None:
    """Rule 20: the home stays, the owner changes."""
    view = view_of(meta)
    topic = view.topic("", "orders")
    assert topic is not None
    before = view.homes(topic)
    run = meta_pb2.SlotRange(first_slot=0, slot_count=4096, raft_group=2)
    view.apply(
        meta_pb2.WatchResponse(revision=view.revision + 1, changes=[meta_pb2.Change(slots=run)])
    )
    assert view.owners(topic) == (2,)
    assert view.homes(topic) == before


def test_a_dead_letter_topic_has_a_queue_per_raft_group(meta: FakeMeta) -> None:
    """Rule 26: its queue numbers are raft group ids."""
    meta.add_group(meta_pb2.ConsumerGroup(name="g"))
    view = view_of(meta)
    topic = view.topic("", "%DLQ%g")
    assert topic is not None
    assert [(home.raft_group, tuple(home.queues)) for home in view.homes(topic)] == [
        (1, (1,)),
        (2, (2,)),
    ]
    assert view.owner(topic, 2) == 2


def test_a_snapshot_in_parts_is_seen_as_a_whole(meta: FakeMeta) -> None:
    """Until its last part comes the old rows stand; one that breaks off leaves no trace."""
    view = view_of(meta)
    told: list[set[Name]] = []
    view.on_consumer_groups(lambda names: told.append(set(names)))
    new = meta_pb2.Change(topic=meta_pb2.Topic(topic_id=900, name="new", queue_count=1))
    group = meta_pb2.Change(consumer_group=meta_pb2.ConsumerGroup(name="g"))
    first = meta_pb2.WatchResponse(snapshot=True, snapshot_revision=99, changes=[new])
    last = meta_pb2.WatchResponse(revision=99, snapshot_revision=99, changes=[group])
    view.apply(first)
    revision, version = view.revision, view.placement_version
    assert view.topic("", "new") is None
    view.apply(meta_pb2.WatchResponse(revision=revision + 1))
    assert view.topic("", "orders") is not None
    view.apply(first)
    view.apply(last)
    assert (view.revision, view.topic("", "orders")) == (99, None)
    assert view.topic("", "new") is not None
    assert view.placement_version > version
    assert told == [{("", "g")}]


def test_deletions_and_snapshots_forget(meta: FakeMeta) -> None:
    """A deleted row goes; a snapshot is the whole state."""
    view = view_of(meta)
    gone = meta_pb2.Change(deleted=True, topic=meta_pb2.Topic(name="orders"))
    view.apply(meta_pb2.WatchResponse(revision=view.revision + 1, changes=[gone]))
    assert view.topic("", "orders") is None
    assert view.topic_by_id(101) is None
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True))
    assert len(view.topics()) == 0
    assert view.raft_groups() == []


async def test_waiting_for_a_revision_ends_when_it_is_taken_in_or_late() -> None:
    """True once applied, False after the time."""
    view = MetadataView()
    waiting = asyncio.ensure_future(view.wait_for_revision(3, 5))
    await asyncio.sleep(0)
    view.apply(meta_pb2.WatchResponse(revision=2))
    await asyncio.sleep(0)
    assert not waiting.done()
    view.apply(meta_pb2.WatchResponse(revision=3))
    assert await waiting
    assert not await view.wait_for_revision(4, 0.001)


async def test_a_cut_watch_is_resumed_from_its_revision(app: BrokerApp, meta: FakeMeta) -> None:
    """Nothing is lost and nothing is forgotten meanwhile."""
    meta.cut()
    assert app.view.topic("", "orders") is not None
    meta.add_topic("later")
    await until(lambda: app.view.topic("", "later"))
    assert app.view.revision == meta.revision


async def test_ten_thousand_topics_cost_little(meta: FakeMeta) -> None:
    """A topic that nobody uses is its row, its name and its id, and no object of its own."""
    changes = [
        meta_pb2.Change(
            topic=meta_pb2.Topic(
                topic_id=1000 + number,
                name=f"topic-{number}",
                type=meta_pb2.TOPIC_TYPE_NORMAL,
                queue_count=8,
                homes=[
                    meta_pb2.HomeQueues(raft_group=1, queues=[0, 2, 4, 6]),
                    meta_pb2.HomeQueues(raft_group=2, queues=[1, 3, 5, 7]),
                ],
            )
        )
        for number in range(10_000)
    ]
    response = meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes)
    view = MetadataView()
    tracemalloc.start()
    view.apply(response)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(view.topics()) == 10_000
    assert used / 10_000 < 400


@pytest.mark.parametrize("names", [["made"], ["made"] * 5])
async def test_unknown_topics_are_not_made_by_default(
    client: Client, meta: FakeMeta, names: list[str]
) -> None:
    """auto_create_topic is off: no call reaches the nameserver."""
    for name in names:
        response = await client.send(message(name, 1))
        assert response.status.code == 40402
    assert "CreateTopic" not in meta.calls


def test_topics_that_are_not_used_are_no_objects(meta: FakeMeta) -> None:
    """A broker keeps the topics that it was asked for last; all others are made anew."""
    view = MetadataView(max_topics_in_use=20)
    changes = [
        meta_pb2.Change(
            topic=meta_pb2.Topic(topic_id=1 + number, name=f"t{number}", queue_count=number)
        )
        for number in range(500)
    ]
    view.apply(meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes))
    assert view.topics().in_use == 0
    used = view.topic("", "t7")
    for number in range(500):
        assert view.topic("", "t7") is used, "a topic in use stays the same object"
        found = view.topic_by_id(1 + number)
        assert found is not None
        assert (found.name, found.queue_count) == (f"t{number}", number)
        assert view.topics().in_use <= 20
    in_use = view.topics().in_use
    for number in range(500):
        row = view.topics().parsed(("", f"t{number}"))
        assert row is not None and row.topic_id == 1 + number
        assert ("", f"t{number}") in view.topics()
    assert ("", "t500") not in view.topics() and view.topics().parsed(("", "t500")) is None
    assert view.topics().in_use == in_use and view.topic("", "t7") is used
    grown = meta_pb2.Change(topic=meta_pb2.Topic(topic_id=8, name="t7", queue_count=9))
    view.apply(meta_pb2.WatchResponse(revision=2, changes=[grown]))
    changed = view.topic("", "t7")
    assert changed is not None and changed.queue_count == 9
    again = meta_pb2.Change(topic=meta_pb2.Topic(topic_id=900, name="t7", queue_count=1))
    view.apply(meta_pb2.WatchResponse(revision=3, changes=[again]))
    assert view.topic_by_id(8) is None
    made = view.topic_by_id(900)
    assert made is not None and made is view.topic("", "t7")


def test_a_consumer_group_that_was_made_anew_has_its_new_id_only(meta: FakeMeta) -> None:
    """Windows of storage nodes name ids; what is left of the old one has no name any more."""
    view = view_of(meta)
    for group_id in (3, 4):
        group = meta_pb2.ConsumerGroup(name="g", consumer_group_id=group_id)
        changes = [meta_pb2.Change(consumer_group=group)]
        view.apply(meta_pb2.WatchResponse(revision=view.revision + 1, changes=changes))
    assert view.consumer_group_by_id(3) is None
    assert view.consumer_group_by_id(4) is view.consumer_group("", "g")


def test_topics_that_come_and_go_leave_nothing(meta: FakeMeta) -> None:
    """Neither memory nor counts grow with the topics and consumer groups that were deleted."""
    view = MetadataView(max_topics_in_use=20)
    sizes = []
    tracemalloc.start()
    for turn in range(6):
        for deleted in (False, True):
            changes = []
            for number in range(300):
                name, row_id = f"t{number}", 1 + turn * 300 + number
                topic = meta_pb2.Topic(namespace=f"n{number % 7}", name=name, topic_id=row_id)
                group = meta_pb2.ConsumerGroup(
                    namespace=f"n{number % 7}", name=name, consumer_group_id=row_id
                )
                changes += [
                    meta_pb2.Change(deleted=deleted, topic=topic),
                    meta_pb2.Change(deleted=deleted, consumer_group=group),
                ]
            revision = view.revision + 1
            view.apply(meta_pb2.WatchResponse(revision=revision, changes=changes))
            if not deleted:
                assert len(view.topics()) == len(view.topic_names()) == 300
                assert len(view.consumer_group_names()) == 300
                assert all(view.topic("n1", f"t{number}") for number in range(1, 300, 7))
                assert view.consumer_group_by_id(row_id) is view.consumer_group(f"n{299 % 7}", name)
        del changes, topic, group
        assert view.consumer_group_by_id(row_id) is None
        assert len(view.topics()) == len(view.topic_names()) == view.topics().in_use == 0
        assert len(view.consumer_group_names()) == view.topic_count("n1") == 0
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[2:]) - sizes[1] < 20_000, sizes
