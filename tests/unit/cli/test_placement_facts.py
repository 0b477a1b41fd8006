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
)
from strata_cli.errors import CliError, UsageError
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
    """Return windows as FindMessages gives them: each a serialised message.

    They are stored when they end, by a clock that is right.
    """
    now_ms = int(time.time() * 1_000)
    return [
        admin_pb2.FoundMessage(
            offset=number,
            store_time_ms=min(each.start_ms + each.length_ms, now_ms),
            message=definition_pb2.Message(body=encode(each)).SerializeToString(),
        )
        for number, each in enumerate(batches)
    ]


class FakeClient:
    """A broker of a cluster of three storage nodes with one raft group led by each.

    Topic `hot` has two queues in raft group 1, `cold` one in each of the others. `%DLQ%workers` has
    a queue in each raft group, the table `%KV%stock` is in raft group 3.
    """

    def __init__(self, found: list[admin_pb2.FoundMessage], page_size: int = 4) -> None:
        self.admin = self
        self.found, self.page_size = found, page_size
        self.has_windows = True
        self.refusal = "not_found"
        self.moving: set[tuple[str, int]] = set()
        self.asked: list[str] = []
        self.pages = 0

    def call(self, method: Any, request: Any) -> Any:
        return method(request)

    def FindMessages(
        self, request: admin_pb2.FindMessagesRequest
    ) -> admin_pb2.FindMessagesResponse:
        if not self.has_windows:
            raise CliError("no such topic", self.refusal)
        assert request.begin_ms <= time.time() * 1_000
        self.pages += 1
        end_ms = request.end_ms if request.HasField("end_ms") else 1 << 62
        found = [each for each in self.found if request.begin_ms <= each.store_time_ms < end_ms]
        first = int(request.page_token or 0)
        after = first + self.page_size
        return admin_pb2.FindMessagesResponse(
            messages=found[first:after],
            next_page_token=str(after) if after < len(found) else "",
        )

    def ListTopics(self, request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
        topics = [meta_pb2.Topic(name="hot"), meta_pb2.Topic(name="cold")]
        if request.include_system:
            topics += [
                meta_pb2.Topic(name="%DLQ%workers", type=meta_pb2.TOPIC_TYPE_DEAD_LETTER),
                meta_pb2.Topic(name="%KV%stock"),
            ]
        return admin_pb2.ListTopicsResponse(topics=topics)

    def GetTopic(self, request: admin_pb2.GetTopicRequest) -> admin_pb2.GetTopicResponse:
        self.asked.append(request.name)
        raft_groups = {"hot": (1, 1), "cold": (2, 3), "%DLQ%workers": (1, 2, 3), "%KV%stock": (3,)}[
            request.name
        ]
        return admin_pb2.GetTopicResponse(
            queues=[
                admin_pb2.QueueStatus(
                    queue=queue,
                    raft_group=raft_group,
                    moving=(request.name, queue) in self.moving,
                )
                for queue, raft_group in enumerate(raft_groups, request.name.startswith("%DLQ%"))
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

    queues = placed_queues(client, measured.series.names)
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


def test_what_may_not_move_is_load_of_its_node() -> None:
    """A table and dead letters fill node 3: queues of node 1 go to node 2, and those two stay."""
    loads = {
        1: [queue_row("hot", 0, 1, 40, 0), queue_row("hot", 1, 1, 35, 0)],
        3: [queue_row("%KV%stock", 0, 3, 35, 0), queue_row("%DLQ%workers", 3, 3, 30, 0)],
    }
    batches = [
        batch(WindowKind.QUEUE, f"node-{raft_group}", window, rows)
        for window in range(WINDOWS)
        for raft_group, rows in loads.items()
    ]
    client: Any = FakeClient(stored(batches), page_size=100)
    measured = measure(client, "windows", 60_000, 0)
    queues = placed_queues(client, measured.series.names)
    assert queues.raft_group_of["/%KV%stock/0"] == queues.raft_group_of["/%DLQ%workers/3"] == 3
    assert queues.held >= {"/%KV%stock/0", "/%DLQ%workers/3"}
    expected = expect(measured.series, "naive")
    model = cluster_model(client, expected, measured, queues, 120 * MIB)
    # It leads raft group 3, and follows the other two.
    assert model.utilisation()["node-3"][0] == pytest.approx((65 + 0.35 * 75) / 120)
    actions = [
        step.action for step in make_plan(model, PlannerOptions(), Source("t", "", 0, 0)).steps
    ]
    moves = [action for action in actions if isinstance(action, MoveQueue)]
    assert moves
    assert {(move.queue.split("/")[1], move.to_raft_group) for move in moves} == {("hot", 2)}


def test_dead_letters_without_load_are_not_asked_for() -> None:
    """Each consumer group has a dead-letter topic: a call for each would take long."""
    client: Any = FakeClient(stored(skewed()), page_size=100)
    queues = placed_queues(client, measure(client, "windows", 60_000, 0).series.names)
    assert client.asked == ["hot", "cold"]
    assert set(queues.raft_group_of) == {"/hot/0", "/hot/1", "/cold/0", "/cold/1"}


def test_growth_counts_dead_letters() -> None:
    """Tables hold no messages, so they do not grow."""
    client: Any = FakeClient([])
    measured = measure(client, "growth", 60_000, 1)
    assert "/%DLQ%workers/3" in measured.series.names
    assert not [name for name in measured.series.names if "%KV%" in name]
    with pytest.raises(UsageError, match="--sample 0ms"):
        measure(client, "growth", 60_000, 0)


def test_windows_of_hours_ago_are_not_the_present() -> None:
    """Told, not planned by; `auto` looks at growth instead and says why."""
    shifted = [
        batch(WindowKind.QUEUE, "node-1", window - 7_200, [queue_row("hot", 0, 1, 8, 0)])
        for window in range(WINDOWS)
    ]
    client: Any = FakeClient(stored(shifted))
    with pytest.raises(CliError, match="the newest metric window ended 1200 min ago"):
        measure(client, "windows", 86_400_000, 0)
    measured = measure(client, "auto", 86_400_000, 1)
    assert (measured.unit, measured.series.windows) == ("messages", 1)
    assert "ended 1200 min ago" in measured.notes[0]


def test_a_clock_ahead_does_not_hide_the_loads_of_other_nodes() -> None:
    """A thousand seconds, or two weeks: that node's windows do not count, and a note says so."""
    right = [
        batch(WindowKind.QUEUE, "node-1", window, [queue_row("hot", 0, 1, 20, 20)])
        for window in range(WINDOWS)
    ]
    ahead = [
        batch(WindowKind.QUEUE, "node-2", window + 100, [queue_row("cold", 0, 2, 0.1, 0.1)])
        for window in (0, 1, 120_960)
    ]
    client: Any = FakeClient(stored(right + ahead))
    measured = measure(client, "windows", 900_000, 0)
    assert measured.series.names == ("/hot/0",)
    assert list(measured.series.columns[0]) == [40 * MIB] * WINDOWS
    assert measured.notes == (
        "batches of metric windows that do not count: 3 of node-2 begin after now: is that node's "
        "clock ahead, or this machine's behind?",
    )


def test_a_node_that_fell_silent_is_told() -> None:
    """Its queues count as idle, which may be wrong: its clock may be behind."""
    batches = skewed()
    batches += [batch(WindowKind.QUEUE, "node-3", -60, [queue_row("cold", 1, 3, 5, 0)])]
    measured = measure(FakeClient(stored(batches)), "windows", 900_000, 0)  # type: ignore[arg-type]
    [note] = measured.notes
    assert note.startswith("no metric window of the last 5 min is from node-3: ")
