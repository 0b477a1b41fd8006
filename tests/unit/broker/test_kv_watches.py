"""Watches of tables at a broker: what a client is told, so that it can go on elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from strata.kv.v1 import kv_storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.kv.streams import Streams
from strata_broker.metadata.metadata import TopicRow
from strata_mq.layout.hashing import text_hash
from strata_testing import ManualClock

TOPIC = cast(
    "TopicRow",
    SimpleNamespace(
        topic_id=5, namespace="tenant", slot_base=1, queue_count=1, is_dead_letter=False
    ),
)


async def test_a_watch_without_changes_of_its_own_is_told_how_far_it_came() -> None:
    """Else it would go on at another broker behind a revision that is not kept any more."""
    clock = ManualClock(0.0)

    asked: list[kv_storage_pb2.FollowRequest] = []

    async def stream(
        method: str, request: kv_storage_pb2.FollowRequest, response_type: object
    ) -> AsyncIterator[kv_storage_pb2.FollowResponse]:
        asked.append(request)
        # One revision of other keys each 0.1 s.
        for revision in range(10, 41):
            yield kv_storage_pb2.FollowResponse(revision=revision)
            clock.advance(0.1)
        told = kv_storage_pb2.FollowResponse(revision=41)
        told.changes.add().item.key = b"mine"
        yield told

    leaders = SimpleNamespace(node_of=lambda raft_group: "n1")
    channels = SimpleNamespace(to=lambda node: SimpleNamespace(stream=stream))
    parts: Any = SimpleNamespace(
        cluster=SimpleNamespace(
            storage=SimpleNamespace(leaders=leaders, channels=channels),
            view=SimpleNamespace(topic_by_id=lambda _: TOPIC, owner=lambda *_: 1),
        ),
        calls=SimpleNamespace(clock=clock, config=BrokerConfig()),
        random=lambda: 0.5,
        boot_id=77,
    )
    owners = (("client", "c1"), ("connection", "10.0.0.1:99"), ("address", "10.0.0.1"))
    watch = Streams(parts, BrokerConfig().kv).watch(TOPIC, b"mine", 0, owners)
    told = []
    async for response in watch:
        told.append((response.revision, len(response.changes)))
        if response.changes:
            break
    await watch.aclose()
    names = (text_hash("c1"), text_hash("10.0.0.1"), text_hash("tenant"))
    owner = asked[0].owner
    assert (owner.client, owner.address, owner.namespace) == names
    assert owner.broker_boot_id == 77
    assert told[0] == (10, 0)
    assert told[-1] == (41, 1)
    progress = [revision for revision, _ in told[1:-1]]
    assert progress == sorted(progress)
    assert len(progress) in (2, 3), "as time goes by, not with every revision"
    assert progress[-1] >= 30
