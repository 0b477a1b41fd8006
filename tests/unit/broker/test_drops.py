"""The data of what was deleted goes, also when the first attempt failed or its broker died."""

from __future__ import annotations

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import RAFT_GROUPS, FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

REFUSAL = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="full")


@pytest.fixture
def config() -> BrokerConfig:
    """Drops are tried again without a pause."""
    return broker_config(metadata={"drop_retry_interval_ms": 1})


def dropped(storage: FakeStorage) -> list[tuple[int, int]]:
    """(raft group, topic id) of all drops asked for."""
    return [
        (request.raft_group, request.topic_id)
        for _, request in storage.calls
        if isinstance(request, storage_pb2.DropRequest)
    ]


async def test_a_deletion_drops_everywhere_and_confirms_once(
    edge: FakeEdge, app: BrokerApp, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Every raft group drops the topic before the tombstone is done; then nothing is repeated."""
    await edge.call(
        ADMIN + "DeleteTopic",
        admin_pb2.DeleteTopicRequest(name="orders"),
        admin_pb2.DeleteTopicResponse,
    )
    await until(lambda: not app.view.pending_drops())
    assert set(dropped(storage)) == {(raft_group, 101) for raft_group in RAFT_GROUPS}
    tombstones = [change.tombstone for change in meta.rows if change.HasField("tombstone")]
    assert [tombstone.done for tombstone in tombstones][:2] == [False, True]


async def test_a_deletion_whose_broker_died_is_finished_by_another(
    client: Client, app: BrokerApp, meta: FakeMeta, storage: FakeStorage
) -> None:
    """A tombstone that comes by the watch is enough."""
    await client.send(message("orders", 1))
    assert storage.messages(101)
    meta.delete_topic("", "orders")
    await until(lambda: "ConfirmDropped" in meta.calls)
    await until(lambda: not app.view.pending_drops())
    assert storage.messages(101) == []


async def test_a_drop_is_confirmed_only_when_all_raft_groups_did_it(
    app: BrokerApp, meta: FakeMeta, storage: FakeStorage
) -> None:
    """A refusal of one raft group leaves the tombstone as it is, and the drop is repeated."""
    storage.trouble["Drop"].extend([REFUSAL, storage_pb2.Refusal(), REFUSAL])
    meta.delete_topic("", "orders")
    # Seen in every turn: the next round begins some milliseconds later.
    await until(lambda: storage.count("Drop") == 4, step_s=0)
    assert "ConfirmDropped" not in meta.calls
    await until(lambda: "ConfirmDropped" in meta.calls)
    assert dropped(storage)[:6] == [(raft_group, 101) for raft_group in RAFT_GROUPS] * 3


async def test_a_consumer_group_goes_with_its_dead_letters(
    app: BrokerApp, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Tombstones of consumer groups name consumer groups to storage."""
    group = meta.add_group(meta_pb2.ConsumerGroup(name="g"))
    tombstone = meta_pb2.Tombstone(
        kind=meta_pb2.TOMBSTONE_KIND_CONSUMER_GROUP, id=group.consumer_group_id, name="g"
    )
    meta.put(meta_pb2.Change(tombstone=tombstone))
    await until(lambda: "ConfirmDropped" in meta.calls)
    requests = [
        request for _, request in storage.calls if isinstance(request, storage_pb2.DropRequest)
    ]
    assert {request.consumer_group_id for request in requests} == {group.consumer_group_id}
    assert {request.WhichOneof("what") for request in requests} == {"consumer_group_id"}
