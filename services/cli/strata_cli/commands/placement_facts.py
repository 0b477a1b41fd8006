"""The facts for a plan, asked of a live cluster through any broker.

Loads come from the metric windows in `__strata_metrics`. Without windows, the ends of all queues
are read twice, and the messages stored in between are the load. Such loads show an uneven cluster.
They do not show how full a node is, what is read, or what brokers do; the caller is told so.

Dead-letter queues and key-value tables stay in their raft groups. Their loads count for the nodes
that bear them, and no plan moves them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError, UsageError
from strata_cli.metric_windows import PAGE_SIZE, WindowReading
from strata_mq.requests import is_table_topic
from strata_placement.cluster import BrokerModel, ClusterModel, GroupModel, NodeModel
from strata_placement.outlook import Expectation
from strata_placement.series import LoadSeries, load_series, quantile
from strata_placement.windows import (
    BrokerTraffic,
    GroupTraffic,
    QueueName,
    broker_traffic,
    newest_end_ms,
    queue_series,
    raft_group_traffic,
)
from strata_runtime.windows import WindowBatch

# A storage node keeps its last windows for a broker that is late, six by default. After five
# minutes, or three longer windows, without any, what was measured is not the present.
_MAX_AGE_MS = 300_000
_MAX_AGE_WINDOWS = 3
# Nodes that a note names.
_MAX_NAMED = 5
# Rate above which brokers read from all replicas of a raft group, by default.
_SPREAD_ABOVE_BYTES_PER_S = 8 * 1024 * 1024
# A broker is one process, and Python runs on one core of it.
_BROKER_CORES = 1.0
# Less CPU time than this does not show the cost of a byte.
_LEAST_CORES = 0.02
_PEAK = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredLoads:
    """Loads of queues and their source.

    Attributes:
        series: loads by queue.
        source: text for people.
        unit: of the loads: `bytes` or `messages`, per second.
        traffic: by raft group; empty: not known.
        brokers: windows of brokers, by time; empty: not known.
        notes: what a person should know of the source, such as windows that do not count.
    """

    series: LoadSeries
    source: str
    unit: str
    traffic: Mapping[int, GroupTraffic] = field(default_factory=dict)
    brokers: Sequence[BrokerTraffic] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Queues:
    """Queues as they are placed now.

    Attributes:
        raft_group_of: raft group that takes a queue's messages.
        held: queues that no plan may move: they are moving, an earlier epoch of them drains, or
            they are of dead letters or of a key-value table.
    """

    raft_group_of: Mapping[str, int]
    held: frozenset[str]


def placed_queues(client: AdminClient, measured: Collection[str] = ()) -> Queues:
    """Return where every queue is.

    Args:
        client: a broker.
        measured: names of queues with a load. Each consumer group has a dead-letter topic, and few
            of them any load: those without are not asked for.
    """
    loaded = {(name.namespace, name.topic) for name in map(QueueName.parse, measured)}
    raft_group_of: dict[str, int] = {}
    held = set[str]()
    for topic in _topics(client):
        stays = _stays(topic)
        if stays and (topic.namespace, topic.name) not in loaded:
            continue
        for queue in _queues(client, topic):
            name = str(QueueName(topic.namespace, topic.name, queue.queue))
            raft_group_of[name] = queue.raft_group
            if queue.moving or stays:
                held.add(name)
    return Queues(raft_group_of, frozenset(held))


def measure(client: AdminClient, loads: str, history_ms: int, sample_ms: int) -> MeasuredLoads:
    """Return the loads of the last time.

    Args:
        client: a broker.
        loads: `windows`, `growth`, or `auto`: growth only when there are no metric windows of the
            present.
        history_ms: how far back windows are read.
        sample_ms: how long growth is watched.

    Raises:
        CliError: no broker answers, or there is no queue; or windows are asked for, and there are
            none, or none of the present.
        PlacementError: there are no windows of queues.
    """
    if loads == "growth":
        return _sampled(client, sample_ms)
    reading = WindowReading(client, history_ms)
    batches = list(reading)
    missing = _why_not(batches, history_ms, reading.now_ms)
    if missing and loads == "windows":
        raise CliError("; ".join((missing, *reading.notes())))
    if missing:
        # Without any windows growth is what an operator expects, and its source is told anyway.
        notes = (missing, *reading.notes()) if batches else reading.notes()
        return replace(_sampled(client, sample_ms), notes=notes)
    return MeasuredLoads(
        queue_series(batches),
        f"metric windows of {(reading.now_ms - reading.begin_ms) / 60_000:.0f} min",
        "bytes",
        raft_group_traffic(batches),
        broker_traffic(batches),
        (*reading.notes(), *_silent(batches, reading.now_ms)),
    )


def cluster_model(
    client: AdminClient,
    expected: Expectation,
    measured: MeasuredLoads,
    queues: Queues,
    node_capacity_per_s: float,
    broker_capacity_per_s: float = 0.0,
) -> ClusterModel:
    """Return the cluster as the planner sees it, with the loads to come.

    Args:
        client: a broker.
        expected: loads per point, in the order of the series' names.
        measured: loads, and what is known of reads and brokers.
        queues: place of each queue; queues that were not measured are idle.
        node_capacity_per_s: of each storage node, in the unit of the loads; 0: unknown; the
            busiest node then counts as half used and the plan only evens out loads.
        broker_capacity_per_s: of each broker, in bytes; 0: derived from its CPU time.
    """
    cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    placement = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    loads = {load.node_id: load for load in placement.loads}
    nodes = tuple(
        _node(node, loads.get(node.node_id), node_capacity_per_s or 1.0)
        for node in cluster.nodes
        if node.kind == meta_pb2.NODE_KIND_STORAGE
    )
    leaders = {health.raft_group: health.leader_node_id for health in cluster.raft_groups}
    seconds = measured.series.windows * measured.series.step_ms / 1_000
    groups = tuple(
        _group(client, number, leader, measured.traffic.get(number, GroupTraffic()), seconds)
        for number, leader in sorted(leaders.items())
        if leader
    )
    led = {group.raft_group for group in groups}
    raft_group_of, names = queues.raft_group_of, measured.series.names
    known = [at for at, name in enumerate(names) if raft_group_of.get(name) in led]
    up = sum(
        node.kind == meta_pb2.NODE_KIND_BROKER and node.state == meta_pb2.NODE_STATE_UP
        for node in cluster.nodes
    )
    model = ClusterModel(
        nodes,
        groups,
        [names[at] for at in known],
        [raft_group_of[names[at]] for at in known],
        [[point[at] for at in known] for point in expected.points],
        queues.held,
        broker_model(up, measured.brokers, broker_capacity_per_s),
    )
    return model if node_capacity_per_s else _half_used(model)


def broker_model(
    count: int, windows: Sequence[BrokerTraffic], capacity_per_s: float
) -> BrokerModel | None:
    """Return the broker tier; None: its capacity is unknown.

    Without a configured capacity, a broker's capacity is the bytes that fill one core at the CPU
    time per byte of the busier half of the windows: at low load most CPU time is not for messages.

    Args:
        count: brokers that are up.
        windows: of all brokers, by time.
        capacity_per_s: of each, in bytes; 0: not known.
    """
    if not count or not windows:
        return None
    peak = quantile([window.bytes_per_s for window in windows], _PEAK)
    if capacity_per_s:
        return BrokerModel(count, capacity_per_s, peak)
    middle = quantile([window.bytes_per_s for window in windows], 0.5)
    busy = [window for window in windows if window.bytes_per_s >= middle]
    cores = sum(window.cpu_cores for window in busy)
    if cores < _LEAST_CORES * len(busy) or not peak:
        return None
    per_core = sum(window.bytes_per_s for window in busy) / cores
    return BrokerModel(count, per_core * _BROKER_CORES, peak)


def _why_not(batches: Sequence[WindowBatch], history_ms: int, now_ms: int) -> str:
    """Return why windows do not tell the present load; empty: they do."""
    ends = newest_end_ms(batches)
    if not batches or not ends:
        return (
            f"there are no metric windows of the last {history_ms // 1_000} s: storage nodes "
            "and brokers write them with observability.windows = true"
        )
    age_ms = now_ms - max(ends.values())
    if age_ms <= _max_age_ms(batches):
        return ""
    return (
        f"the newest metric window ended {age_ms / 60_000:.0f} min ago, so windows do not tell the "
        "load of now: see that storage nodes and brokers run with observability.windows = true, "
        "and that the clock of this machine is right"
    )


def _silent(batches: Sequence[WindowBatch], now_ms: int) -> Iterator[str]:
    """Yield a note when storage nodes that wrote windows no longer do."""
    oldest_ms = now_ms - _max_age_ms(batches)
    silent = sorted(node for node, end_ms in newest_end_ms(batches).items() if end_ms < oldest_ms)
    if silent:
        more = f" and {len(silent) - _MAX_NAMED} more" if len(silent) > _MAX_NAMED else ""
        yield (
            f"no metric window of the last {_max_age_ms(batches) / 60_000:.0f} min is from "
            f"{', '.join(silent[:_MAX_NAMED])}{more}: queues that only they measured count as "
            "idle; are their clocks behind?"
        )


def _max_age_ms(batches: Sequence[WindowBatch]) -> int:
    longest_ms = max((batch.length_ms for batch in batches), default=0)
    return max(_MAX_AGE_MS, _MAX_AGE_WINDOWS * longest_ms)


def _half_used(model: ClusterModel) -> ClusterModel:
    """Return the cluster with a node capacity of twice the highest load instead of 1."""
    most = max((max(line) for line in model.utilisation().values()), default=0.0) or 1.0
    nodes = tuple(replace(node, capacity_bytes_per_s=2 * most) for node in model.nodes)
    return replace(model, nodes=nodes)


def _node(node: meta_pb2.Node, load: meta_pb2.NodeLoad | None, capacity_per_s: float) -> NodeModel:
    is_slow = load is not None and load.is_slow
    return NodeModel(
        node.node_id,
        capacity_per_s,
        node.rack,
        load.disk_free_bytes if load is not None else 0,
        load.disk_total_bytes if load is not None else 0,
        can_take=node.state == meta_pb2.NODE_STATE_UP and not node.draining and not is_slow,
        must_go=node.draining,
        machine=node.machine,
    )


def _group(
    client: AdminClient, number: int, leader: str, traffic: GroupTraffic, seconds: float
) -> GroupModel:
    request = admin_pb2.GetRaftGroupRequest(raft_group=number)
    row = client.call(client.admin.GetRaftGroup, request).row
    return GroupModel(
        number,
        leader,
        tuple(replica.node_id for replica in row.replicas if not replica.learner),
        tuple(replica.node_id for replica in row.replicas if replica.learner),
        stored_bytes=traffic.stored_bytes,
        read_share=traffic.read_share,
        is_settled=not row.leaving,
        spreads_reads=traffic.bytes_out >= _SPREAD_ABOVE_BYTES_PER_S * seconds > 0,
    )


def _sampled(client: AdminClient, sample_ms: int) -> MeasuredLoads:
    if sample_ms < 1:
        raise UsageError(f"--sample {sample_ms}ms: growth is measured over 1ms at least")
    before = _ends(client)
    time.sleep(sample_ms / 1_000)
    after = _ends(client)
    if not after:
        raise CliError("there is no queue to plan for")
    series = load_series(
        int(time.time() * 1_000) - sample_ms,
        sample_ms,
        (
            (name, [(end - before.get(name, end)) * 1_000 / sample_ms])
            for name, end in after.items()
        ),
    )
    return MeasuredLoads(series, f"growth of queues over {sample_ms} ms", "messages")


def _ends(client: AdminClient) -> dict[str, int]:
    return {
        str(QueueName(topic.namespace, topic.name, queue.queue)): queue.next_offset
        for topic in _topics(client)
        # A table holds no messages.
        if not is_table_topic(topic.name)
        for queue in _queues(client, topic)
    }


def _stays(topic: meta_pb2.Topic) -> bool:
    """Whether the nameserver refuses to move the topic's queues."""
    return topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER or is_table_topic(topic.name)


def _topics(client: AdminClient) -> Iterator[meta_pb2.Topic]:
    request = admin_pb2.ListTopicsRequest(page_size=PAGE_SIZE, include_system=True)
    while True:
        page = client.call(client.admin.ListTopics, request)
        yield from page.topics
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _queues(client: AdminClient, topic: meta_pb2.Topic) -> Sequence[admin_pb2.QueueStatus]:
    request = admin_pb2.GetTopicRequest(namespace=topic.namespace, name=topic.name)
    return client.call(client.admin.GetTopic, request).queues
