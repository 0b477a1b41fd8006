"""The commands of `strata group`; `name` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.options import COMMON, Common, UsageError, numbers, time_ms
from strata_cli.output import show
from strata_cli.views import View, group_view, lag_view, member_view

Name = Annotated[str, Parameter(help="Name of the consumer group.")]

PAGE_SIZE = 1_000

app = App(name="group", help="Consumer groups.")


@app.command
def create(
    name: Name,
    /,
    *,
    fifo: Annotated[bool, Parameter(negative="")] = False,
    max_attempts: int | None = None,
    backoff_ms: str | None = None,
    backoff_exp: str | None = None,
    lite_topic: str = "",
    broadcast: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Create a consumer group, with its dead-letter topic %DLQ%NAME.

    For instance: strata group create billing --fifo --max-attempts 5 --backoff-ms 1000,5000

    Args:
        fifo: Deliver the messages of a message group in order, one at a time.
        max_attempts: Deliveries before a message becomes a dead letter.
        backoff_ms: Delays before redeliveries, A,B,... in milliseconds; the last one repeats.
        backoff_exp: Growing delays before redeliveries: INITIAL_MS,MAX_MS,MULTIPLIER.
        lite_topic: Topic of type LITE that the consumer group consumes from.
        broadcast: Deliver every message to every member.
    """
    group = meta_pb2.ConsumerGroup(
        namespace=common.namespace,
        name=name,
        fifo=fifo,
        broadcast=broadcast,
        lite_topic=lite_topic,
    )
    if max_attempts is not None:
        group.max_attempts = _attempts(max_attempts)
    _set_backoff(group, backoff_ms, backoff_exp)
    request = admin_pb2.CreateConsumerGroupRequest(consumer_group=group)
    with connect(common) as client:
        response = client.call(client.admin.CreateConsumerGroup, request)
    show(group_view(response.consumer_group), common)


@app.command(name="list")
def list_(
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """List consumer groups.

    For instance: strata group list -o json

    Args:
        all_namespaces: List the consumer groups of every namespace.
    """
    request = admin_pb2.ListConsumerGroupsRequest(page_size=PAGE_SIZE)
    if not all_namespaces:
        request.namespace = common.namespace
    groups: list[View] = []
    with connect(common) as client:
        while True:
            response = client.call(client.admin.ListConsumerGroups, request)
            groups.extend(group_view(group) for group in response.consumer_groups)
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
    columns = ("namespace", "name", "fifo", "broadcast", "max_attempts", "consumer_group_id")
    show({"groups": groups}, common, rows="groups", columns=columns)


@app.command(name="show")
def show_(name: Name, /, *, common: Common = COMMON) -> None:
    """Show a consumer group: lag per queue, messages in flight, members.

    For instance: strata group show billing -o json
    """
    request = admin_pb2.GetConsumerGroupRequest(namespace=common.namespace, name=name)
    with connect(common) as client:
        response = client.call(client.admin.GetConsumerGroup, request)
    result = group_view(response.consumer_group) | {
        "lag": sum(queue.lag for queue in response.queues),
        "in_flight": sum(queue.in_flight for queue in response.queues),
        "queues": [lag_view(queue) for queue in response.queues],
        "members": [member_view(member) for member in response.members],
    }
    show(result, common, rows="queues")


@app.command
def update(
    name: Name,
    /,
    *,
    fifo: bool | None = None,
    max_attempts: int | None = None,
    backoff_ms: str | None = None,
    backoff_exp: str | None = None,
    lite_topic: str | None = None,
    broadcast: bool | None = None,
    common: Common = COMMON,
) -> None:
    """Change a consumer group; settings without an option stay as they are.

    For instance: strata group update billing --max-attempts 3 --backoff-exp 1000,60000,2

    Args:
        fifo: Deliver the messages of a message group in order, one at a time.
        max_attempts: Deliveries before a message becomes a dead letter.
        backoff_ms: Delays before redeliveries, A,B,... in milliseconds; the last one repeats.
        backoff_exp: Growing delays before redeliveries: INITIAL_MS,MAX_MS,MULTIPLIER.
        lite_topic: Topic of type LITE that the consumer group consumes from.
        broadcast: Deliver every message to every member.
    """
    group = meta_pb2.ConsumerGroup(namespace=common.namespace, name=name)
    mask = []
    if fifo is not None:
        group.fifo = fifo
        mask.append("fifo")
    if max_attempts is not None:
        group.max_attempts = _attempts(max_attempts)
        mask.append("max_attempts")
    if backoff_ms is not None or backoff_exp is not None:
        _set_backoff(group, backoff_ms, backoff_exp)
        mask.append("backoff")
    if lite_topic is not None:
        group.lite_topic = lite_topic
        mask.append("lite_topic")
    if broadcast is not None:
        group.broadcast = broadcast
        mask.append("broadcast")
    if not mask:
        raise UsageError("nothing to change: give at least one option, see strata group update -h")
    request = admin_pb2.UpdateConsumerGroupRequest(consumer_group=group, update_mask=mask)
    with connect(common) as client:
        response = client.call(client.admin.UpdateConsumerGroup, request)
    show(group_view(response.consumer_group), common)


@app.command
def delete(
    name: Name, /, *, yes: Yes = False, dry_run: DryRun = False, common: Common = COMMON
) -> None:
    """Delete a consumer group, its cursors and its dead-letter topic.

    For instance: strata group delete billing --dry-run
    """
    request = admin_pb2.DeleteConsumerGroupRequest(namespace=common.namespace, name=name)
    with connect(common) as client:
        if dry_run:
            found = _get(client, name, common)
            result = {
                "would_delete": name,
                "members": len(found.members),
                "lag": sum(queue.lag for queue in found.queues),
                "in_flight": sum(queue.in_flight for queue in found.queues),
            }
            show(result, common)
            return
        confirm(f"Consumer group {name}, its cursors and dead letters are deleted", yes=yes)
        client.call(client.admin.DeleteConsumerGroup, request)
    show({"deleted": name}, common)


@app.command
def reset(
    name: Name,
    /,
    *,
    to: str,
    topic: str = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Move a consumer group's cursors; earlier receipt handles become invalid.

    For instance: strata group reset billing --to 2026-11-21T12:30:00Z --topic orders

    Args:
        to: earliest, latest, or a time (ISO 8601 or milliseconds since 1970).
        topic: Reset only this topic; default: every topic that the group has state for.
    """
    request = admin_pb2.ResetConsumerGroupRequest(
        namespace=common.namespace, name=name, topic=topic
    )
    if to == "earliest":
        request.earliest = True
    elif to == "latest":
        request.latest = True
    else:
        request.time_ms = time_ms(to)
    with connect(common) as client:
        if dry_run:
            planned = _planned_reset(client, request, common)
            show(
                {"name": name, "to": to, "dry_run": True, "queues": planned}, common, rows="queues"
            )
            return
        confirm(f"Consumer group {name} is moved to {to}", yes=yes)
        response = client.call(client.admin.ResetConsumerGroup, request)
    queues = sorted(response.queues, key=lambda queue: (queue.topic, queue.queue))
    result = {"name": name, "to": to, "queues": [lag_view(queue) for queue in queues]}
    show(result, common, rows="queues")


def _get(client: AdminClient, name: str, common: Common) -> admin_pb2.GetConsumerGroupResponse:
    request = admin_pb2.GetConsumerGroupRequest(namespace=common.namespace, name=name)
    return client.call(client.admin.GetConsumerGroup, request)


def _planned_reset(
    client: AdminClient, reset: admin_pb2.ResetConsumerGroupRequest, common: Common
) -> list[View]:
    """Return each queue with the cursor that a reset would give it, as it is now."""
    queues = [
        queue
        for queue in _get(client, reset.name, common).queues
        if reset.topic in ("", queue.topic)
    ]
    by_time: dict[tuple[str, int], int] = {}
    if reset.WhichOneof("to") == "time_ms":
        for topic in sorted({queue.topic for queue in queues}):
            request = admin_pb2.ListQueueSpansRequest(
                namespace=common.namespace, topic=topic, begin_ms=reset.time_ms
            )
            for span in client.call(client.admin.ListQueueSpans, request).spans:
                key = topic, span.queue
                by_time[key] = min(by_time.get(key, span.first_offset), span.first_offset)
    planned = []
    for queue in sorted(queues, key=lambda each: (each.topic, each.queue)):
        if reset.earliest:
            after = queue.min_offset
        else:
            after = by_time.get((queue.topic, queue.queue), queue.next_offset)
        planned.append(lag_view(queue) | {"cursor_after": after})
    return planned


def _attempts(max_attempts: int) -> int:
    if max_attempts < 1:
        raise UsageError(f"--max-attempts {max_attempts}: a message is delivered at least once")
    return max_attempts


def _set_backoff(
    group: meta_pb2.ConsumerGroup, backoff_ms: str | None, backoff_exp: str | None
) -> None:
    if backoff_ms is not None and backoff_exp is not None:
        raise UsageError("give --backoff-ms or --backoff-exp, not both")
    if backoff_ms is not None:
        group.customized.next_ms.extend(
            _whole(value, "--backoff-ms") for value in numbers(backoff_ms)
        )
    elif backoff_exp is not None:
        values = numbers(backoff_exp)
        if len(values) != 3:
            raise UsageError(f"--backoff-exp {backoff_exp}: write INITIAL_MS,MAX_MS,MULTIPLIER")
        group.exponential.initial_ms = _whole(values[0], "--backoff-exp")
        group.exponential.max_ms = _whole(values[1], "--backoff-exp")
        group.exponential.multiplier = values[2]


def _whole(value: float, option: str) -> int:
    if value < 0 or value != int(value):
        raise UsageError(f"{option}: {value:g} is not a whole number of milliseconds")
    return int(value)
