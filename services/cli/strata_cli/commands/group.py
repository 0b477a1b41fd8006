"""The commands of `strata group`; `name` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import lags
from strata_cli.client import AdminClient, connect
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common, numbers, time_ms
from strata_cli.output import show
from strata_cli.views import View, group_view, lag_view, member_view
from strata_cli.watching import INTERVAL, Interval, Watch, look

Name = Annotated[str, Parameter(help="Name of the consumer group.")]

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
    lite_exclusive: Annotated[bool, Parameter(negative="")] = False,
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
        lite_exclusive: A lite topic has one member at most: the last one that subscribed to it.
        broadcast: Deliver every message to every member.
    """
    group = meta_pb2.ConsumerGroup(
        namespace=common.namespace,
        name=name,
        fifo=fifo,
        broadcast=broadcast,
        lite_topic=lite_topic,
        lite_exclusive=lite_exclusive,
    )
    if max_attempts is not None:
        group.max_attempts = _attempts(max_attempts)
    _set_backoff(group, backoff_ms, backoff_exp)
    request = admin_pb2.CreateConsumerGroupRequest(consumer_group=group)
    with connect(common) as client:
        response = client.call(client.admin.CreateConsumerGroup, request)
    show(group_view(response.consumer_group), common)


@app.command(name=["list", "ls"])
def list_(
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """List consumer groups.

    For instance: strata group list -o json

    Args:
        all_namespaces: List the consumer groups of every namespace.
    """
    columns = ("namespace", "name", "fifo", "broadcast", "max_attempts", "consumer_group_id")
    with connect(common) as client:

        def draw() -> None:
            rows = lags.group_rows(client, None if all_namespaces else common.namespace)
            groups = [group_view(row) for row in rows]
            show({"groups": groups}, common, rows="groups", columns=columns)

        look(draw, common, watch=watch, interval=interval)


@app.command(name="show")
def show_(
    name: Name,
    /,
    *,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """Show a consumer group: lag per queue, messages in flight, members.

    For instance: strata group show billing -o json
    """
    with connect(common) as client:

        def draw() -> None:
            found = _get(client, name, common)
            result = group_view(found.consumer_group) | {
                "lag": sum(queue.lag for queue in found.queues),
                "in_flight": sum(queue.in_flight for queue in found.queues),
                "queues": [lag_view(queue) for queue in found.queues],
                "members": [member_view(member) for member in found.members],
            }
            show(result, common, rows="queues")

        look(draw, common, watch=watch, interval=interval)


@app.command
def lag(
    names: Annotated[tuple[str, ...], Parameter(help="Consumer groups; none: all.")] = (),
    /,
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    above: int = -1,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """Show the lag of consumer groups, the highest first; of one consumer group by topic.

    With --watch it also shows how many messages per second each consumer group has consumed since
    the last look.

    For instance: strata group lag --watch

    Args:
        all_namespaces: Show the consumer groups of every namespace.
        above: Show only consumer groups whose lag is above this number.
    """
    rates = lags.CounterRates()
    columns = ("namespace", "group", "lag", "in_flight", "members", "consumed_per_s")
    with connect(common) as client:

        def draw() -> None:
            wanted = [(common.namespace, name) for name in names]
            if not names:
                rows = lags.group_rows(client, None if all_namespaces else common.namespace)
                wanted = [(row.namespace, row.name) for row in rows]
            found = lags.lags_of(client, wanted, rates)
            missing = {name for _, name in wanted} - {each["group"] for each in found}
            if names and missing:
                raise CliError(f"consumer group {min(missing)} does not exist", "not_found")
            found = sorted(
                (each for each in found if each["lag"] > above),
                key=lambda each: (-each["lag"], each["namespace"], each["group"]),
            )
            if len(names) == 1 and found and not common.for_programs:
                (only,) = found
                show(only, common, rows="topics")
            else:
                show({"groups": found}, common, rows="groups", columns=columns)

        look(draw, common, watch=watch, interval=interval)


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
    lite_exclusive: bool | None = None,
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
        lite_exclusive: A lite topic has one member at most: the last one that subscribed to it.
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
    if lite_exclusive is not None:
        group.lite_exclusive = lite_exclusive
        mask.append("lite_exclusive")
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
    to: str = "",
    offset: int | None = None,
    topic: str = "",
    queue: Annotated[list[int] | None, Parameter(negative="")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Move a consumer group's cursors; earlier receipt handles become invalid.

    For instance: strata group reset billing --to 2026-11-21T12:30:00Z --topic orders

    Args:
        to: earliest, latest, or a time (ISO 8601 or milliseconds since 1970).
        offset: Offset to move to, instead of --to; needs --topic.
        topic: Reset only this topic; default: every topic that the group has state for.
        queue: Reset only this queue of the topic; may be repeated.
    """
    if bool(to) == (offset is not None):
        raise UsageError("give --to or --offset")
    if (offset is not None or queue) and not topic:
        raise UsageError("--offset and --queue need --topic: they mean queues of one topic")
    if (offset is not None and offset < 0) or any(each < 0 for each in queue or ()):
        raise UsageError("--offset and --queue are 0 or more")
    request = admin_pb2.ResetConsumerGroupRequest(
        namespace=common.namespace, name=name, topic=topic, queues=queue or ()
    )
    if offset is not None:
        request.offset = offset
    elif to == "earliest":
        request.earliest = True
    elif to == "latest":
        request.latest = True
    else:
        request.time_ms = time_ms(to)
    _reset(request, to or str(offset), common, yes=yes, dry_run=dry_run)


@app.command
def skip(
    name: Name,
    /,
    *,
    topic: str = "",
    queue: Annotated[list[int] | None, Parameter(negative="")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Skip all messages that have accumulated: the consumer group goes on with new ones.

    For instance: strata group skip billing --topic orders --dry-run

    Args:
        topic: Skip only messages of this topic; default: of every topic that the group has state
            for.
        queue: Skip only messages of this queue of the topic; may be repeated.
    """
    if queue and not topic:
        raise UsageError("--queue needs --topic: it means queues of one topic")
    request = admin_pb2.ResetConsumerGroupRequest(
        namespace=common.namespace, name=name, topic=topic, queues=queue or (), latest=True
    )
    _reset(request, "latest", common, yes=yes, dry_run=dry_run)


@app.command
def clone(
    source: Annotated[str, Parameter(help="Consumer group whose cursors are copied.")],
    target: Annotated[str, Parameter(help="Consumer group that gets them; it exists.")],
    /,
    *,
    topic: str = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Copy the cursors of a consumer group to another one, queue by queue.

    Messages that were acked out of order after a cursor are delivered to the other one again.

    For instance: strata group clone billing billing-new --dry-run

    Args:
        topic: Copy only the cursors on this topic.
    """
    with connect(common) as client:
        queues = [each for each in _get(client, source, common).queues if topic in ("", each.topic)]
        if topic and not queues:
            raise CliError(f"consumer group {source} has no state for topic {topic}", "not_found")
        _get(client, target, common)
        result: View = {"name": target, "source": source}
        if dry_run:
            result["dry_run"] = True
        else:
            confirm(f"Consumer group {target} is moved to where {source} is", yes=yes)
        moved = []
        for each in sorted(queues, key=lambda each: (each.topic, each.queue)):
            view = lag_view(each)
            if not dry_run:
                request = admin_pb2.ResetConsumerGroupRequest(
                    namespace=common.namespace,
                    name=target,
                    topic=each.topic,
                    queues=[each.queue],
                    offset=each.cursor,
                )
                (state,) = client.call(client.admin.ResetConsumerGroup, request).queues
                view = lag_view(state)
            moved.append(view)
    show({**result, "queues": moved}, common, rows="queues")


def _reset(
    request: admin_pb2.ResetConsumerGroupRequest,
    to: str,
    common: Common,
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    result: View = {"name": request.name, "to": to}
    with connect(common) as client:
        if dry_run:
            planned = _planned_reset(client, request, common)
            show({**result, "dry_run": True, "queues": planned}, common, rows="queues")
            return
        where = f" offset {to}" if request.WhichOneof("to") == "offset" else f" {to}"
        confirm(f"Consumer group {request.name} is moved to{where}", yes=yes)
        response = client.call(client.admin.ResetConsumerGroup, request)
    queues = sorted(response.queues, key=lambda queue: (queue.topic, queue.queue))
    show({**result, "queues": [lag_view(queue) for queue in queues]}, common, rows="queues")


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
        if reset.topic in ("", queue.topic) and (not reset.queues or queue.queue in reset.queues)
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
        elif reset.WhichOneof("to") == "offset":
            after = min(max(reset.offset, queue.min_offset), queue.next_offset)
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
