"""Complaints of users of RocketMQ about switches of controllers and name servers, not seen here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from strata.meta.v1 import meta_pb2
from strata_metadata import MetadataClient
from strata_testing import until
from tests.integration.nameserver.test_cluster import create_topic, register_storage

if TYPE_CHECKING:
    from strata_nameserver.process.app import NameserverApp
    from tests.integration.nameserver.conftest import NameserverSet


async def topics_at(client: MetadataClient, revision: int) -> list[meta_pb2.Topic]:
    """Return all topics as of a revision or later; a follower may lag behind for a moment."""
    async with asyncio.timeout(30):
        while True:
            snapshot = await client.call(
                "GetSnapshot", meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse
            )
            if snapshot.revision >= revision:
                return [row.topic for row in snapshot.rows if row.HasField("topic")]


def _has(nameserver: NameserverApp, revision: int) -> bool:
    return nameserver.revision >= revision


async def test_9804_no_topic_is_lost_when_the_leader_changes(nameservers: NameserverSet) -> None:
    """Each leader dies once: every topic that was made is there, with the same id and queues."""
    client = nameservers.client()
    await register_storage(client)
    made: list[meta_pb2.Topic] = []
    for turn in range(len(nameservers.members)):
        made += [await create_topic(client, f"topic-{turn}-{number}") for number in range(10)]
        old = await nameservers.leader()
        await nameservers.stop(old)
        new = await nameservers.leader()
        assert new is not old
        assert await topics_at(client, made[-1].revision) == made
        await nameservers.start(old)
        back = old.app
        assert back is not None
        await until(partial(_has, back, made[-1].revision))
