"""Changes are in the log with their author, at every level; reads are not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_edge.ports import CallError
from strata_runtime import logs
from strata_testing.broker.fake_edge import ADMIN, FakeEdge


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where lines go."""
    written = io.StringIO()
    logs.configure(level="error", stream=written)
    yield written
    logs.configure()


def audited(stream: io.StringIO) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line.get("component") == logs.AUDIT]


async def create(edge: FakeEdge, name: str) -> None:
    topic = meta_pb2.Topic(name=name, type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
    request = admin_pb2.CreateTopicRequest(topic=topic)
    await edge.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)


async def test_each_change_is_a_line(edge: FakeEdge, stream: io.StringIO) -> None:
    """It says what was changed, by which client, from where; a refused change is none."""
    await create(edge, "made")
    with pytest.raises(CallError):
        await create(edge, "made")
    for rpc in ("GetTopic", "DeleteTopic"):
        request = getattr(admin_pb2, f"{rpc}Request")(name="made")
        await edge.call(ADMIN + rpc, request, getattr(admin_pb2, f"{rpc}Response"))
    created, deleted = audited(stream)
    assert (created["event"], created["rpc"]) == ("cluster changed", "CreateTopic")
    assert created["request"].startswith('topic { name: "made"')
    assert created["client_id"] == "client-1"
    assert created["peer"]
    assert (deleted["rpc"], deleted["request"].strip()) == ("DeleteTopic", 'name: "made"')


async def test_audit_can_be_turned_off(edge: FakeEdge, stream: io.StringIO) -> None:
    """Then not even the lowest level writes it."""
    logs.configure(level="debug", stream=stream, audits=False)
    await create(edge, "made")
    assert audited(stream) == []


async def test_a_large_request_is_told_by_its_outline(edge: FakeEdge, stream: io.StringIO) -> None:
    """A line stays a line, and says what was changed."""
    topic = meta_pb2.Topic(name="large", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
    topic.attributes["note"] = "x" * 5_000
    request = admin_pb2.CreateTopicRequest(topic=topic)
    await edge.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)
    [line] = audited(stream)
    outline = 'topic { name: "large", type: 1, queue_count: 4, 1 attributes }'
    assert line["request"] == f"{outline}, {request.ByteSize()} bytes"
