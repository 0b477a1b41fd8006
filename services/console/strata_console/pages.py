"""Reads that are more than a command line: overview, lists with search, groups, audit, keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.cluster_views import health_report, health_view, node_views
from strata_cli.embedded import run_line
from strata_cli.errors import UsageError
from strata_cli.views import (
    View,
    found_message_view,
    group_view,
    lag_view,
    member_view,
    topic_view,
)
from strata_console.catalogue import Listing, Row
from strata_console.query import Query
from strata_console.reads import Answer, Read, Reader

AUDIT_TOPIC = "__strata_audit"

_MAX_AGES = 64
_TOPIC_SORTS = ("name", "type", "queues", "retention_ms", "updated_at_ms")
_GROUP_SORTS = ("name", "fifo", "max_attempts", "updated_at_ms")
_EMPTY_PLACEMENT = admin_pb2.GetPlacementResponse()


def overview(reader: Reader, query: Query) -> Answer:
    """Return nodes, raft groups and what is wrong, in one answer."""
    client = reader.client
    cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    health = client.call(client.admin.GetHealth, admin_pb2.GetHealthRequest())
    try:
        placement = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    except CallFailed:
        # The user may not see plans, or no nameserver answers: no node is known as slow.
        placement = _EMPTY_PLACEMENT
    loads = {load.node_id: load for load in placement.loads}
    led: dict[str, int] = {}
    for group in cluster.raft_groups:
        led[group.leader_node_id] = led.get(group.leader_node_id, 0) + 1
    nodes = [
        node
        | {
            "leads": led.get(node["node"], 0),
            "bytes_per_s": round(loads[node["node"]].bytes_per_s) if node["node"] in loads else 0,
            "busy": node["node"] in loads and loads[node["node"]].is_busy,
            "disk_free_bytes": loads[node["node"]].disk_free_bytes if node["node"] in loads else 0,
            "disk_total_bytes": loads[node["node"]].disk_total_bytes
            if node["node"] in loads
            else 0,
        }
        for node in node_views(cluster, placement)
    ]
    report = health_report(health)
    # A time that changes at every look would make a live page send everything again.
    del report["checked_at_ms"]
    stale = cluster.metadata_is_stale
    return {
        "version": cluster.version,
        "health": report | {"metadata_age_ms": cluster.metadata_age_ms if stale else 0},
        "nodes": nodes,
        "raft_groups": [health_view(group) for group in cluster.raft_groups],
        "metadata_stale": stale,
    }, ("cluster", "show")


def topics(reader: Reader, query: Query) -> Answer:
    """Return a page of topics that match a search."""
    listing = reader.catalogue.rows(reader.client, reader.user, "topics")
    wanted_type = query.text("type")
    is_dead_letter = meta_pb2.TOPIC_TYPE_DEAD_LETTER
    found = [
        row
        for row in _matching(listing, query)
        if isinstance(row, meta_pb2.Topic)
        and (query.flag("system") or row.type != is_dead_letter)
        and (not wanted_type or meta_pb2.TopicType.Name(row.type) == f"TOPIC_TYPE_{wanted_type}")
    ]
    keys = {
        "type": lambda row: meta_pb2.TopicType.Name(row.type),
        "queues": lambda row: row.queue_count,
    }
    view = _page(found, query, _TOPIC_SORTS, keys) | {"is_cut": listing.is_cut}
    view["rows"] = [topic_view(row) for row in view["rows"]]
    return view, ("topic", "list", "--all-namespaces")


def groups(reader: Reader, query: Query) -> Answer:
    """Return a page of consumer groups that match a search, with their lag."""
    listing = reader.catalogue.rows(reader.client, reader.user, "groups")
    found = [row for row in _matching(listing, query) if isinstance(row, meta_pb2.ConsumerGroup)]
    view = _page(found, query, _GROUP_SORTS, {}) | {"is_cut": listing.is_cut}
    view["rows"] = [group_view(row) | _progress(reader.client, row) for row in view["rows"]]
    return view, ("group", "list", "--all-namespaces")


def group(reader: Reader, query: Query) -> Answer:
    """Return a consumer group: lag and age per queue, members, dead letters."""
    name, namespace, client = query.name("name"), query.text("namespace"), reader.client
    request = admin_pb2.GetConsumerGroupRequest(namespace=namespace, name=name)
    response = client.call(client.admin.GetConsumerGroup, request)
    lagging = 0
    queues = []
    for queue in sorted(response.queues, key=lambda each: (each.topic, each.queue)):
        oldest_ms = None
        if queue.lag and lagging < _MAX_AGES:
            lagging += 1
            oldest_ms = _stored_at_ms(client, namespace, queue)
        queues.append(lag_view(queue) | {"oldest_time_ms": oldest_ms})
    view = group_view(response.consumer_group) | {
        "lag": sum(queue.lag for queue in response.queues),
        "in_flight": sum(queue.in_flight for queue in response.queues),
        "oldest_time_ms": min(
            (each["oldest_time_ms"] for each in queues if each["oldest_time_ms"]), default=None
        ),
        "queues": queues,
        "members": [member_view(member) for member in response.members],
        "dead_letters": _dead_letters(client, namespace, name),
    }
    return view, ("group", "show", name, *query.namespace)


def latest(reader: Reader, query: Query) -> Answer:
    """Return the newest messages of a topic, the newest first."""
    topic = query.name("topic")
    found = newest(reader.client, query.text("namespace"), topic, query.page_size)
    return {"messages": found, "next_page": ""}, _tail_line(topic, query)


def audit(reader: Reader, query: Query) -> Answer:
    """Return the newest events of the audit trail, the newest first."""
    line = ("message", "tail", AUDIT_TOPIC, f"--count={query.page_size}")
    try:
        found = newest(reader.client, "", AUDIT_TOPIC, query.page_size)
    except CallFailed as error:
        if error.code != "not_found":
            raise
        return {"events": [], "has_topic": False}, line
    events = [{"time_ms": each["store_time_ms"]} | _event(each["body"]) for each in found]
    return {"events": events, "has_topic": True}, line


def configuration(reader: Reader, query: Query) -> Answer:
    """Return every key of the answering broker with its default."""
    line = ("config", "show")
    in_force = run_line(reader.client, line)
    return {"keys": list(_keys(in_force))}, line


READS: Mapping[str, Read] = {
    "overview": overview,
    "topics": topics,
    "groups": groups,
    "group": group,
    "latest": latest,
    "audit": audit,
    "config": configuration,
}


def newest(client: AdminClient, namespace: str, topic: str, count: int) -> list[View]:
    """Return the newest messages of a topic, the newest first.

    Raises:
        CliError: the topic does not exist, or it may not be read.
    """
    wanted = admin_pb2.GetTopicRequest(namespace=namespace, name=topic)
    found: list[View] = []
    for queue in client.call(client.admin.GetTopic, wanted).queues:
        if queue.next_offset > queue.min_offset:
            request = admin_pb2.ScanQueueRequest(
                namespace=namespace,
                topic=topic,
                queue=queue.queue,
                offset=max(queue.min_offset, queue.next_offset - min(count, queue.next_offset)),
                max_messages=count,
            )
            found += map(found_message_view, client.call(client.admin.ScanQueue, request).messages)
    return sorted(found, key=lambda each: -each["store_time_ms"])[:count]


def _tail_line(topic: str, query: Query) -> Sequence[str]:
    return ("message", "tail", topic, f"--count={query.page_size}", *query.namespace)


def _matching(listing: Listing, query: Query) -> list[Row]:
    wanted = query.text("search").lower()
    namespace = query.values.get("namespace")
    return [
        row
        for row in listing.rows
        if wanted in row.name.lower() and (namespace is None or row.namespace == namespace)
    ]


def _page(rows: Sequence[Any], query: Query, sorts: Sequence[str], keys: Mapping[str, Any]) -> View:
    sort = query.text("sort") or "name"
    if sort not in sorts:
        raise UsageError(f"sort {sort}: sort by {', '.join(sorts)}")
    if sort != "name" or query.flag("descending"):
        key = keys.get(sort, lambda row: getattr(row, sort))
        rows = sorted(rows, key=key, reverse=query.flag("descending"))
    size = query.page_size
    first = query.number("first", 0)
    return {"rows": rows[first : first + size], "total": len(rows), "first": first, "size": size}


def _progress(client: AdminClient, row: meta_pb2.ConsumerGroup) -> View:
    request = admin_pb2.GetConsumerGroupRequest(namespace=row.namespace, name=row.name)
    try:
        found = client.call(client.admin.GetConsumerGroup, request)
    except CallFailed:
        # It was deleted just now, or a storage node does not answer: the row has no numbers.
        return {"lag": None, "in_flight": None, "members": None}
    return {
        "lag": sum(queue.lag for queue in found.queues),
        "in_flight": sum(queue.in_flight for queue in found.queues),
        "members": len(found.members),
    }


def _stored_at_ms(
    client: AdminClient, namespace: str, queue: admin_pb2.ConsumerQueueLag
) -> int | None:
    """Return when the first message that a consumer group has not acked was stored."""
    request = admin_pb2.ScanQueueRequest(
        namespace=namespace,
        topic=queue.topic,
        queue=queue.queue,
        offset=max(queue.cursor, queue.min_offset),
        max_messages=1,
    )
    try:
        found = client.call(client.admin.ScanQueue, request).messages
    except CallFailed:
        # The user may see the consumer group and not the topic.
        return None
    return found[0].store_time_ms if found else None


def _dead_letters(client: AdminClient, namespace: str, name: str) -> int | None:
    """Return how many dead letters of a consumer group wait."""
    request = admin_pb2.RedriveDeadLettersRequest(
        namespace=namespace, consumer_group=name, max_messages=1, dry_run=True
    )
    try:
        return int(client.call(client.admin.RedriveDeadLetters, request).waiting)
    except CallFailed:
        return None


def _event(body: str | None) -> View:
    try:
        event = json.loads(body or "")
    except ValueError:
        return {"event": body}
    return event if isinstance(event, dict) else {"event": body}


def _keys(in_force: Mapping[str, Any]) -> list[View]:
    # It knows every section of every process: the console loads it when someone asks.
    from strata_cli.processes.cluster_config import ClusterConfig

    keys: list[View] = []
    for section, field in ClusterConfig.model_fields.items():
        model, found = field.annotation, in_force.get(section)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            default = field.get_default(call_default_factory=True)
            keys.append(_key("", section, found, default, field.description))
            continue
        if not isinstance(found, Mapping):
            continue
        for key, info in model.model_fields.items():
            if key in found:
                default = info.get_default(call_default_factory=True)
                keys.append(_key(section, key, found[key], default, info.description))
    return keys


def _key(section: str, key: str, value: Any, default: Any, description: str | None) -> View:
    plain = json.loads(json.dumps(default, default=str))
    return {
        "section": section,
        "key": key,
        "value": value,
        "default": plain,
        "is_default": value == plain,
        "description": description or "",
    }
