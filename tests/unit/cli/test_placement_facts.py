"""A plan is made from metric windows as they are stored: encoded, in messages, over pages."""

from __future__ import annotations

import time
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.commands.placement_facts import (
    broker_model,
    cluster_model,
    measure,
    placed_queues,
    window_batches,
)
from strata_cli.errors import CliError
from strata_placement.outlook import expect
from strata_placement.plan import MoveQueue
from strata_placement.planner import PlannerOptions, Source, make_plan
from strata_placement.windows import BrokerTraffic
from strata_runtime.windows import (
    WINDOW_MS,
    Value,
    WindowBatch,
    WindowKind,
    batches_of,
    decode,
    encode,
)

NODES = ("node-1", "node-2", "node-3")
MIB = 1024 * 1024
WINDOWS = 6


def batch(kind: WindowKind, node_id: str, window: int, rows: list[dict[str, Value]]) -> WindowBatch:
    start_ms = int(time.time() * 1_000) // WINDOW_MS * WINDOW_MS - (WINDOWS - window) * WINDOW_MS
    [made] = batches_of(kind, node_id, start_ms, WINDOW_MS, rows)
    return made


def queue_row(topic: str, queue: int, raft_group: int, mib_in: float, mib_out: float) -> Any:
    """Return a row of a queue with messages of 1 KiB."""
    return {
        "topic": topic,
        "queue": queue,
        "raft_group": raft_group,
        "messages_in": int(mib_in * 10 * 1_024),
        "bytes_in": int(mib_in * 10 * MIB),
        "bytes_out": int(mib_out * 10 * MIB),
        "min_offset": 1_000,
        "end_offset": 21_480,
    }


def stored(batches: list[WindowBatch]) -> list[admin_pb2.FoundMessage]:
    """Return windows as FindMessages gives them: each a serialised message."""
    return [
        admin_pb2.FoundMessage(
            offset=number,
            message=definition_pb2.Message(body=encode(each)).SerializeToString(),
        )
        for number, each in enumerate(batches)
    ]


class FakeClient:
    """A broker of a cluster of three storage nodes with one raft group led by each.

    Topic `hot` has two queues in raft group 1, `cold` one in each of the others.
    """

    def __init__(self, found: list[admin_pb2.FoundMessage], page_size: int = 4) -> None:
        self.admin = self
        self.found, self.page_size = found, page_size
        self.has_windows = True
        self.refusal = "not_found"
        self.moving: set[tuple[str, int]] = set()

    def call(self, method: Any, request: Any) -> Any:
        return method(request)

    def FindMessages(
        self, request: admin_pb2.FindMessagesRequest
    ) -> admin_pb2.FindMessagesResponse:
        if not self.has_windows:
            raise CliError("no such topic", self.refusal)
        assert request.begin_ms <= time.time() * 1_000
        first = int(request.page_token or 0)
        after = first + self.page_size
        return admin_pb2.FindMessagesResponse(
            messages=self.found[first:after],
            next_page_token=str(after) if after < len(self.found) else "",
        )

    def ListTopics(self, request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
        return admin_pb2.ListTopicsResponse(
            topics=[meta_pb2.Topic(name="hot"), meta_pb2.Topic(name="cold")]
        )

    def GetTopic(self, request: admin_pb2.GetTopicRequest) -> admin_pb2.GetTopicResponse:
        raft_groups = (1, 1) if request.name == "hot" else (2, 3)
        return admin_pb2.GetTopicResponse(
            queues=[
                admin_pb2.QueueStatus(
                    queue=queue,
                    raft_group=raft_group,
                    moving=(request.name, queue) in self.moving,
                )
                for queue, raft_group in enumerate(raft_groups)
            ]
        )

    def GetCluster(self, request: admin_pb2.GetClusterRequest) -> admin_pb2.GetClusterResponse:
        response = admin_pb2.GetClusterResponse()
        for node_id in NODES:
            response.nodes.add(
                node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, state=meta_pb2.NODE_STATE_UP
            )
        response.nodes.add(
            node_id="broker-1", kind=meta_pb2.NODE_KIND_BROKER, state=meta_pb2.NODE_STATE_UP
        )
        for number, node_id in enumerate(NODES, start=1):
            response.raft_groups.add(raft_group=number, leader_node_id=node_id)
        return response

    def GetPlacement(
        self, request: admin_pb2.GetPlacementRequest
    ) -> admin_pb2.GetPlacementResponse:
        return admin_pb2.GetPlacementResponse()

    def GetRaftGroup(
        self, request: admin_pb2.GetRaftGroupRequest
    ) -> admin_pb2.GetRaftGroupResponse:
        row = meta_pb2.RaftGroup(raft_group=request.raft_group)
        for node_id in NODES:
            row.replicas.add(node_id=node_id)
        return admin_pb2.GetRaftGroupResponse(row=row)


def skewed() -> list[WindowBatch]:
    """Two hot queues at one leader, one of them read three times; a broker that does it all."""
    batches = []
    for window in range(WINDOWS):
        rows = [queue_row("hot", 0, 1, 4, 12), queue_row("hot", 1, 1, 4, 4)]
        batches.append(batch(WindowKind.QUEUE, "node-1", window, rows))
        batches.append(
            batch(WindowKind.QUEUE, "node-2", window, [queue_row("cold", 0, 2, 0.5, 0.5)])
        )
        broker: dict[str, Value] = {
            "node_kind": "broker",
            "bytes_in": int(85 * MIB),
            "bytes_out": int(165 * MIB),
            "cpu_cores": 0.5,
        }
        batches.append(batch(WindowKind.NODE, "broker-1", window, [broker]))
    return batches


def test_windows_are_read_over_all_pages() -> None:
    """Each message is a whole stored message; one that is no window says nothing."""
    batches = skewed()
    found = stored(batches)
    other = definition_pb2.Message(body=b"something else").SerializeToString()
    found.insert(3, admin_pb2.FoundMessage(message=other))
    client: Any = FakeClient(found)
    assert list(window_batches(client, 60_000)) == [decode(encode(each)) for each in batches]
    client.has_windows = False
    assert list(window_batches(client, 60_000)) == []


def test_windows_that_cannot_be_read_are_no_empty_list() -> None:
    """Only a topic that does not exist has no windows; any other failure is shown."""
    client: Any = FakeClient([])
    client.has_windows, client.refusal = False, "unreachable"
    with pytest.raises(CliError):
        list(window_batches(client, 60_000))


def test_a_plan_is_made_from_stored_windows() -> None:
    """Loads, reads, what is stored, what may not move, and brokers all come from them."""
    client: Any = FakeClient(stored(skewed()))
    client.moving = {("hot", 1)}
    measured = measure(client, "auto", 60_000, 0)
    assert measured.unit == "bytes"
    assert measured.series.windows == WINDOWS
    column = dict(zip(measured.series.names, measured.series.columns, strict=True))
    assert column["/hot/0"][-1] == 16 * MIB
    traffic = measured.traffic[1]
    assert traffic.read_share == pytest.approx(16 / 24)
    assert traffic.stored_bytes == 2 * 20_480 * 1_024

    queues = placed_queues(client)
    assert queues.held == {"/hot/1"}
    expected = expect(measured.series, "naive")
    model = cluster_model(client, expected, measured, queues, 100 * MIB)
    hot, cold, _ = model.groups
    assert (hot.read_share, hot.stored_bytes) == (traffic.read_share, traffic.stored_bytes)
    assert hot.spreads_reads
    assert not cold.spreads_reads
    assert model.brokers is not None
    assert model.brokers.peak_bytes_per_s == 25 * MIB
    assert model.brokers.capacity_bytes_per_s == 50 * MIB

    plan = make_plan(model, PlannerOptions(), Source("test", "", 0, 0))
    moved = [step.action.queue for step in plan.steps if isinstance(step.action, MoveQueue)]
    assert "/hot/1" not in moved, "an earlier epoch of it drains"


def test_without_windows_growth_counts_only_when_it_may() -> None:
    """`--loads windows` says that there are none instead."""
    client: Any = FakeClient([])
    client.has_windows = False
    with pytest.raises(CliError, match=r"observability\.windows"):
        measure(client, "windows", 60_000, 0)
    assert measure(client, "auto", 60_000, 1).unit == "messages"


def test_brokers_of_which_nothing_is_known_are_left_alone() -> None:
    """No windows, no brokers, or too little CPU time to tell what a byte costs."""
    idle = [BrokerTraffic(at, 100.0, 0.001) for at in range(5)]
    busy = [BrokerTraffic(at, 1e6, 0.25) for at in range(5)]
    assert broker_model(2, (), 0) is None
    assert broker_model(0, busy, 0) is None
    assert broker_model(2, idle, 0) is None
    known = broker_model(2, idle, 5e6)
    assert known is not None
    assert (known.count, known.capacity_bytes_per_s, known.peak_bytes_per_s) == (2, 5e6, 100.0)
    by_cpu = broker_model(2, busy, 0)
    assert by_cpu is not None
    assert by_cpu.capacity_bytes_per_s == 4e6
