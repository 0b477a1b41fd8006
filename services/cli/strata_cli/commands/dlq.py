"""The commands of `strata dlq`; `group` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View, dead_letter_topic_view, dead_letter_view, redriven_view

Group = Annotated[str, Parameter(help="Name of the consumer group.")]

_MAX_PAGE = 1_000

app = App(
    name="dlq", help="Dead letters: messages that used up a consumer group's delivery attempts."
)


@app.command(name="list")
def list_(
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """List the consumer groups that have dead letters, and how many each one has.

    For instance: strata dlq list -o json

    Args:
        all_namespaces: List the consumer groups of every namespace.
    """
    request = admin_pb2.ListDeadLetterTopicsRequest()
    if not all_namespaces:
        request.namespace = common.namespace
    topics: list[View] = []
    with connect(common) as client:
        while True:
            response = client.call(client.admin.ListDeadLetterTopics, request)
            topics.extend(map(dead_letter_topic_view, response.topics))
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
    columns = ("namespace", "consumer_group", "topic", "messages", "waiting", "last_store_time_ms")
    show({"topics": topics}, common, rows="topics", columns=columns)


@app.command(name="show")
def show_(group: Group, /, *, count: int = 32, page: str = "", common: Common = COMMON) -> None:
    """Show the dead letters of a consumer group; nothing is consumed.

    For instance: strata dlq show billing --count 100

    Args:
        count: Most dead letters to show.
        page: Continue at this place: `next_page` of the previous answer.
    """
    if count < 1:
        raise UsageError(f"--count {count}: ask for at least one dead letter")
    request = admin_pb2.ListDeadLettersRequest(
        namespace=common.namespace, consumer_group=group, page_token=page
    )
    letters: list[View] = []
    with connect(common) as client:
        while True:
            request.max_messages = min(count - len(letters), _MAX_PAGE)
            response = client.call(client.admin.ListDeadLetters, request)
            letters.extend(map(dead_letter_view, response.dead_letters))
            request.page_token = response.next_page_token
            if not response.next_page_token or len(letters) >= count:
                break
    columns = ("message_id", "topic", "tag", "body", "queue", "offset", "store_time_ms", "redriven")
    result = {"dead_letters": letters, "next_page": request.page_token}
    show(result, common, rows="dead_letters", columns=columns)


@app.command
def redrive(
    group: Group,
    /,
    *,
    message_id: str = "",
    limit: int | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Send dead letters back to the topics they came from, each with a new message id.

    Every consumer group of such a topic gets the message again. A dead letter counts as redriven
    once the new message is stored; if a broker dies in between, nothing is sent twice.

    For instance: strata dlq redrive billing --dry-run

    Args:
        message_id: Send only the dead letter of this message.
        limit: Most dead letters to send; default: all of them.
        dry_run: Show what would be sent and send nothing.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: send at least one dead letter")
    request = admin_pb2.RedriveDeadLettersRequest(
        namespace=common.namespace, consumer_group=group, message_id=message_id, dry_run=dry_run
    )
    messages: list[View] = []
    waiting = 0
    with connect(common) as client:
        for response in _answers(client, request, limit):
            messages.extend(map(redriven_view, response.messages))
            waiting = response.waiting
    failed = {one["message_id"]: one for one in messages if one["error"]}
    sent = [one for one in messages if not one["error"]]
    result = {
        "consumer_group": group,
        "dry_run": dry_run,
        "redriven": 0 if dry_run else len(sent),
        "failed": len(failed),
        "waiting": waiting,
        "messages": [*sent, *failed.values()],
    }
    columns = ("message_id", "new_message_id", "topic", "error")
    show(result, common, rows="messages", columns=columns)
    if failed and not dry_run:
        raise CliError(f"{len(failed)} dead letters could not be sent; they stay")


def _answers(
    client: AdminClient, request: admin_pb2.RedriveDeadLettersRequest, limit: int | None
) -> Iterator[admin_pb2.RedriveDeadLettersResponse]:
    """Call until everything, or `limit`, is sent, or nothing more can be sent."""
    left = limit
    while left is None or left > 0:
        request.max_messages = _MAX_PAGE if left is None else min(left, _MAX_PAGE)
        response = client.call(client.admin.RedriveDeadLetters, request)
        yield response
        done = sum(not one.error for one in response.messages)
        if left is not None:
            left -= done
        request.page_token = response.next_page_token
        goes_on = response.next_page_token if request.dry_run else done and response.waiting
        if not goes_on or request.message_id:
            break
