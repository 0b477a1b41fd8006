"""The commands of `strata topic`; `name` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import time
from typing import Annotated, Literal

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import lags
from strata_cli.client import connect
from strata_cli.commands.read_replicas import set_read_replicas
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common, milliseconds, pairs
from strata_cli.output import show
from strata_cli.progress import progress
from strata_cli.views import View, lite_topic_view, queue_status_view, topic_view
from strata_cli.watching import INTERVAL, Interval, Watch, interval_s_of, look
from strata_mq.tier_policy import LEVEL_ATTRIBUTE, LOCAL_RETENTION_ATTRIBUTE

TopicType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"]
TierLevel = Literal["DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE"]
Name = Annotated[str, Parameter(help="Name of the topic.")]

app = App(name="topic", help="Topics.")


@app.command
def create(
    name: Annotated[str, Parameter(help="Name of the topic; none with --from.")] = "",
    /,
    *,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    type: TopicType = "NORMAL",
    queues: int = 8,
    retention: str = "72h",
    local_retention: str | None = None,
    tiered_storage_level: TierLevel | None = None,
    attribute: Annotated[list[str] | None, Parameter(negative="")] = None,
    read_replicas: int | None = None,
    common: Common = COMMON,
) -> None:
    """Create a topic, or the topics of a file.

    A file has a topic on each line: its name, or a JSON object with name, namespace, type, queues,
    retention and attributes; or it is CSV, and its first line names the columns. The options are
    for topics that do not say otherwise. The command may be repeated: topics that exist with the
    same settings stay.

    For instance: strata topic create orders --type FIFO --queues 8 --retention 72h

    Args:
        from_: File with topics; - is standard input.
        type: Type of the messages that the topic takes.
        queues: Number of queues; it may grow later.
        retention: Time to keep messages, like 72h or 7d; log and tier count together.
        local_retention: Time to keep messages in the log after the tier has them.
        tiered_storage_level: When messages are read from the tier: never, and nothing is
            uploaded; when they are no longer in the log; when they are not in memory; always.
        attribute: Attribute KEY=VALUE of the topic; may be repeated.
        read_replicas: Number of read replicas of each raft group that holds queues of the topic.
    """
    topic = meta_pb2.Topic(
        namespace=common.namespace,
        name=name,
        type=meta_pb2.TopicType.Value(f"TOPIC_TYPE_{type}"),
        queue_count=_queue_count(queues),
        retention_ms=milliseconds(retention),
        attributes=pairs(attribute) | _tier_attributes(tiered_storage_level, local_retention),
    )
    if from_ is not None:
        if name or read_replicas is not None:
            raise UsageError("--from stands alone: leave out the name and --read-replicas")
        _create_from(from_, topic, common)
        return
    if not name:
        raise UsageError("give the NAME of the topic, or --from FILE")
    with connect(common) as client:
        response = client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=topic))
        if read_replicas is not None:
            set_read_replicas(client, common.namespace, name, _replica_count(read_replicas))
    show(topic_view(response.topic), common)


@app.command(name=["list", "ls"])
def list_(
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    system: Annotated[bool, Parameter(negative="")] = False,
    prefix: str = "",
    limit: int | None = None,
    page: str = "",
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """List topics; with --watch also their messages and how many of them come per second.

    For instance: strata topic list --namespace shop

    Args:
        all_namespaces: List the topics of every namespace.
        system: List dead-letter topics too.
        prefix: List topics whose names begin with it.
        limit: Most topics to list; without it all are listed.
        page: Go on behind an earlier list with --limit: its `next_page`.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: list at least one topic")
    columns: tuple[str, ...] = ("namespace", "name", "type", "queues", "retention_ms", "topic_id")
    if watch:
        columns = (*columns[:-1], "messages", "messages_per_s")
    rates = lags.CounterRates()
    wanted = admin_pb2.ListTopicsRequest(
        namespace=None if all_namespaces else common.namespace,
        include_system=system,
        prefix=prefix,
        page_token=page,
    )
    with connect(common) as client:

        def draw() -> None:
            rows, next_page = lags.topic_page(client, wanted, limit)
            topics = [topic_view(row) for row in rows]
            if watch:
                names = [(row.namespace, row.name) for row in rows]
                grown = {
                    (each["namespace"], each["name"]): each
                    for each in lags.rates_of(client, names, rates)
                }
                topics = [
                    view | grown[view["namespace"], view["name"]]
                    for view in topics
                    if (view["namespace"], view["name"]) in grown
                ]
            result = {"topics": topics, "next_page": next_page}
            show(result, common, rows="topics", columns=columns)

        look(draw, common, watch=watch, interval=interval)


@app.command
def list_lite(
    name: Annotated[str, Parameter(help="Name of the parent, a topic of type LITE.")],
    /,
    *,
    limit: int | None = None,
    page: str = "",
    common: Common = COMMON,
) -> None:
    """List the lite topics of a topic of type LITE, raft group by raft group.

    For instance: strata topic list-lite sessions --limit 100

    Args:
        limit: Most lite topics to list; without it all are listed.
        page: Go on behind an earlier list with --limit: its `next_page`.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: list at least one lite topic")
    wanted = admin_pb2.ListLiteTopicsRequest(
        namespace=common.namespace, topic=name, page_token=page
    )
    with connect(common) as client:
        rows, next_page = lags.lite_topic_page(client, wanted, limit)
    result = {"lite_topics": [lite_topic_view(row) for row in rows], "next_page": next_page}
    show(result, common, rows="lite_topics")


@app.command
def rates(
    names: Annotated[tuple[str, ...], Parameter(help="Topics; none: all.")] = (),
    /,
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """Show how many messages topics hold and how many come per second, the busiest first.

    It looks twice, --interval apart.

    For instance: strata topic rates --interval 10s

    Args:
        all_namespaces: Show the topics of every namespace.
    """
    counted = lags.CounterRates()
    namespace = None if all_namespaces else common.namespace
    with connect(common) as client:

        def sample() -> list[View]:
            wanted = [(common.namespace, name) for name in names]
            found = lags.rates_of(client, wanted or lags.topics(client, namespace), counted)
            missing = {name for _, name in wanted} - {each["name"] for each in found}
            if missing:
                raise CliError(f"topic {min(missing)} does not exist", "not_found")
            return found

        def draw() -> None:
            found = sorted(
                sample(), key=lambda each: (-(each["messages_per_s"] or 0), each["name"])
            )
            show({"topics": found}, common, rows="topics")

        interval_s = interval_s_of(interval)
        sample()
        time.sleep(interval_s)
        look(draw, common, watch=watch, interval=interval)


@app.command(name="show")
def show_(name: Name, /, *, common: Common = COMMON) -> None:
    """Show a topic and its queues.

    For instance: strata topic show orders -o json
    """
    request = admin_pb2.GetTopicRequest(namespace=common.namespace, name=name)
    with connect(common) as client:
        response = client.call(client.admin.GetTopic, request)
    queues = [queue_status_view(queue) for queue in response.queues]
    show(topic_view(response.topic) | {"queue_status": queues}, common, rows="queue_status")


@app.command
def update(
    name: Name,
    /,
    *,
    type: TopicType | None = None,
    queues: int | None = None,
    retention: str | None = None,
    local_retention: str | None = None,
    tiered_storage_level: TierLevel | None = None,
    attribute: Annotated[list[str] | None, Parameter(negative="")] = None,
    read_replicas: int | None = None,
    common: Common = COMMON,
) -> None:
    """Change a topic; settings without an option stay as they are.

    For instance: strata topic update orders --queues 16 --retention 7d

    Args:
        type: Type of the messages that the topic takes.
        queues: Number of queues; it can only grow. Message groups of a FIFO topic move to their
            new queues once their old queues are consumed.
        retention: Time to keep messages, like 72h or 7d; log and tier count together.
        local_retention: Time to keep messages in the log after the tier has them.
        tiered_storage_level: When messages are read from the tier, see `create`.
        attribute: Attribute KEY=VALUE; the given attributes replace all others.
        read_replicas: Number of read replicas of each raft group that holds queues of the topic;
            they share the reads with the voters; added and removed while traffic flows.
    """
    topic = meta_pb2.Topic(namespace=common.namespace, name=name)
    mask = []
    if type is not None:
        topic.type = meta_pb2.TopicType.Value(f"TOPIC_TYPE_{type}")
        mask.append("type")
    if queues is not None:
        topic.queue_count = _queue_count(queues)
        mask.append("queue_count")
    if retention is not None:
        topic.retention_ms = milliseconds(retention)
        mask.append("retention_ms")
    tier_attributes = _tier_attributes(tiered_storage_level, local_retention)
    if attribute is not None or tier_attributes:
        mask.append("attributes")
    if not mask and read_replicas is None:
        raise UsageError(
            "nothing to change: give --type, --queues, --retention, --local-retention, "
            "--tiered-storage-level, --read-replicas or --attribute"
        )
    with connect(common) as client:
        if read_replicas is not None:
            set_read_replicas(client, common.namespace, name, _replica_count(read_replicas))
        if attribute is not None:
            topic.attributes.update(pairs(attribute))
        elif tier_attributes:
            # The other attributes stay as they are in the row of this revision.
            found = client.call(
                client.admin.GetTopic,
                admin_pb2.GetTopicRequest(namespace=common.namespace, name=name),
            )
            topic.attributes.update(found.topic.attributes)
            topic.revision = found.topic.revision
        topic.attributes.update(tier_attributes)
        if mask:
            request = admin_pb2.UpdateTopicRequest(topic=topic, update_mask=mask)
            updated = client.call(client.admin.UpdateTopic, request).topic
        else:
            wanted = admin_pb2.GetTopicRequest(namespace=common.namespace, name=name)
            updated = client.call(client.admin.GetTopic, wanted).topic
    show(topic_view(updated), common)


@app.command
def delete(
    name: Name, /, *, yes: Yes = False, dry_run: DryRun = False, common: Common = COMMON
) -> None:
    """Delete a topic with all its messages.

    For instance: strata topic delete orders --dry-run
    """
    request = admin_pb2.DeleteTopicRequest(namespace=common.namespace, name=name)
    with connect(common) as client:
        if dry_run:
            wanted = admin_pb2.GetTopicRequest(namespace=common.namespace, name=name)
            queues = client.call(client.admin.GetTopic, wanted).queues
            messages = sum(queue.next_offset - queue.min_offset for queue in queues)
            show({"would_delete": name, "queues": len(queues), "messages": messages}, common)
            return
        confirm(f"Topic {name} and all its messages are deleted", yes=yes)
        client.call(client.admin.DeleteTopic, request)
    show({"deleted": name}, common)


@app.command
def purge(
    name: Name, /, *, yes: Yes = False, dry_run: DryRun = False, common: Common = COMMON
) -> None:
    """Delete the messages that a topic has now; the topic and its consumer groups stay.

    Messages that are sent meanwhile stay, and so do delayed messages that are not due yet.

    For instance: strata topic purge orders --dry-run
    """
    with connect(common) as client:
        wanted = admin_pb2.GetTopicRequest(namespace=common.namespace, name=name)
        queues = client.call(client.admin.GetTopic, wanted).queues
        messages = sum(queue.next_offset - queue.min_offset for queue in queues)
        if dry_run:
            show({"would_purge": name, "queues": len(queues), "messages": messages}, common)
            return
        confirm(f"All {messages} messages of topic {name} are deleted; the topic stays", yes=yes)
        request = admin_pb2.PurgeTopicRequest(namespace=common.namespace, name=name)
        deleted = client.call(client.admin.PurgeTopic, request).deleted_messages
    show({"purged": name, "messages": deleted}, common)


def _create_from(place: str, template: meta_pb2.Topic, common: Common) -> None:
    """Create the topics of a file.

    Raises:
        CliError: the file is wrong, the broker refuses, or topics could not be created.
    """
    from strata_cli import topic_files

    with connect(common) as client, topic_files.opened(place) as lines, progress("topics") as shown:
        topics = topic_files.read_topics(lines, template)
        done = topic_files.create_topics(client, topics, shown)
    result = {"created": done.created, "existing": done.existing, "failed": len(done.failures)}
    if done.stopped:
        result["stopped"] = done.stopped
    show(result | {"failures": done.failures}, common, rows="failures")
    if done.stopped:
        raise CliError(
            f"{len(done.failures)} topics could not be created; nothing behind line "
            f"{done.stopped} was tried: mend the file and repeat the command"
        )
    if done.failures:
        raise CliError(f"{len(done.failures)} topics could not be created; the others exist")


def _tier_attributes(level: str | None, local_retention: str | None) -> dict[str, str]:
    attributes = {}
    if level is not None:
        attributes[LEVEL_ATTRIBUTE] = level
    if local_retention is not None:
        attributes[LOCAL_RETENTION_ATTRIBUTE] = str(milliseconds(local_retention))
    return attributes


def _replica_count(count: int) -> int:
    if count < 0:
        raise UsageError(f"--read-replicas {count}: give 0 or more")
    return count


def _queue_count(queues: int) -> int:
    if queues < 1:
        raise UsageError(f"--queues {queues}: a topic has at least one queue")
    return queues
