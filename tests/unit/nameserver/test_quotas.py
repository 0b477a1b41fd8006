"""Limits of namespaces and topics, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import Nameserver

INVALID = meta_pb2.META_OUTCOME_INVALID


async def rows(nameserver: Nameserver) -> list[meta_pb2.Quota]:
    """The rows of quotas, by key."""
    _, changes = await nameserver.metadata.snapshot()
    return [change.quota for change in changes if change.HasField("quota")]


async def test_only_named_limits_change(nameserver: Nameserver) -> None:
    """A mask sets what it names, 0 included, and leaves the rest as it was."""
    first = meta_pb2.Quota(namespace="shop", messages_per_s=100, topics=5, bytes_per_s=7)
    await nameserver.metadata.set_quota(first, ["messages_per_s", "topics"])
    second = meta_pb2.Quota(namespace="shop", messages_per_s=0, connections=3)
    made = await nameserver.metadata.set_quota(second, ["messages_per_s", "connections"])

    assert await rows(nameserver) == [made]
    assert made.HasField("messages_per_s") and made.messages_per_s == 0
    assert (made.topics, made.connections, made.HasField("bytes_per_s")) == (5, 3, False)
    assert made.revision == nameserver.machine.revision
    assert made.updated_at_ms == nameserver.clock.wall_ms()


async def test_a_row_that_limits_nothing_goes(nameserver: Nameserver) -> None:
    """The last limit given back to the default takes the row along, and leaves room for others."""
    await nameserver.metadata.set_quota(meta_pb2.Quota(messages_per_s=1), ["messages_per_s"])
    gone = await nameserver.metadata.set_quota(meta_pb2.Quota(), ["messages_per_s"])
    revision = nameserver.machine.revision
    again = await nameserver.metadata.set_quota(meta_pb2.Quota(), ["topics"])

    assert await rows(nameserver) == []
    assert gone.revision == revision, "a caller can wait until the deletion is seen"
    assert (again.revision, nameserver.machine.revision) == (0, revision), "nothing was changed"
    assert nameserver.machine.speculative.counters.quota_count == 0


async def test_a_topics_quota_goes_with_the_topic(nameserver: Nameserver) -> None:
    """A new topic of that name starts with the defaults; the namespace's own row stays."""
    await nameserver.metadata.create_topic(meta_pb2.Topic(namespace="shop", name="orders"))
    of_topic = meta_pb2.Quota(namespace="shop", topic="orders", bytes_per_s=10)
    await nameserver.metadata.set_quota(of_topic, ["bytes_per_s"])
    of_namespace = meta_pb2.Quota(namespace="shop", topics=10)
    await nameserver.metadata.set_quota(of_namespace, ["topics"])
    await nameserver.metadata.delete_topic("shop", "orders")

    assert [(row.namespace, row.topic) for row in await rows(nameserver)] == [("shop", "")]
    assert nameserver.machine.speculative.counters.quota_count == 1


@pytest.mark.parametrize(
    ("quota", "mask", "outcome", "reason"),
    [
        (meta_pb2.Quota(namespace="a b"), ["topics"], INVALID, "illegal characters"),
        (meta_pb2.Quota(), [], INVALID, "update_mask is empty"),
        (meta_pb2.Quota(), ["revision"], INVALID, "revision cannot be changed"),
        (meta_pb2.Quota(topic="orders"), ["topics"], INVALID, "topics cannot be changed"),
        (
            meta_pb2.Quota(topic="none"),
            ["bytes_per_s"],
            meta_pb2.META_OUTCOME_NOT_FOUND,
            "topic none does not exist",
        ),
        (meta_pb2.Quota(topic="%DLQ%g"), ["bytes_per_s"], INVALID, "dead-letter topic"),
    ],
)
async def test_a_refused_quota_says_why(
    nameserver: Nameserver,
    quota: meta_pb2.Quota,
    mask: list[str],
    outcome: int,
    reason: str,
) -> None:
    """A quota that cannot be kept is refused with a clear text, and no row is written."""
    await nameserver.metadata.create_topic(meta_pb2.Topic(name="orders"))
    await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    with pytest.raises(MetaRefused, match=reason) as refusal:
        await nameserver.metadata.set_quota(quota, mask)

    assert refusal.value.outcome == outcome
    assert await rows(nameserver) == []


async def test_the_limit_on_quotas_holds(small_nameserver: Nameserver) -> None:
    """One row more than allowed is LIMIT_REACHED; the one that is there can still change."""
    await small_nameserver.metadata.set_quota(meta_pb2.Quota(topics=1), ["topics"])
    with pytest.raises(MetaRefused, match=r"nameserver\.max_quotas"):
        await small_nameserver.metadata.set_quota(
            meta_pb2.Quota(namespace="b", topics=1), ["topics"]
        )
    changed = await small_nameserver.metadata.set_quota(meta_pb2.Quota(topics=2), ["topics"])

    assert changed.topics == 2
