"""The commands of `strata queue`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.cluster_views import epoch_view, queue_view
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common
from strata_cli.output import show

Topic = Annotated[str, Parameter(help="Name of the topic.")]
Queue = Annotated[int, Parameter(help="Number of the queue.")]

_POLL_S = 0.1

app = App(name="queue", help="Queues of topics.")


@app.command(name="show")
def show_(topic: Topic, queue: Queue, /, *, common: Common = COMMON) -> None:
    """Show where a queue is and where its earlier epochs are.

    For instance: strata queue show orders 3 -o json
    """
    with connect(common) as client:
        response = _get(client, common, topic, queue)
    show(queue_view(topic, queue, response), common, rows="epochs")


@app.command
def explain(topic: Topic, queue: Queue, /, *, common: Common = COMMON) -> None:
    """Explain the place of a queue.

    For instance: strata queue explain orders 3
    """
    with connect(common) as client:
        response = _get(client, common, topic, queue)
    reasons = list(response.reasons)
    if common.for_programs:
        show(queue_view(topic, queue, response) | {"reasons": reasons}, common)
        return
    print("\n".join(reasons))


@app.command
def move(
    topic: Topic,
    queue: Queue,
    /,
    *,
    to: int,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    common: Common = COMMON,
) -> None:
    """Move a queue to another raft group: it stores new messages there; no byte is copied.

    The command waits, within --timeout, until the new raft group takes messages.

    For instance: strata queue move orders 3 --to 5

    Args:
        to: Number of the raft group.
        wait: Return when the queue has moved, not when the move is recorded.
    """
    request = admin_pb2.MoveQueueRequest(
        namespace=common.namespace, topic=topic, queue=queue, to_raft_group=to
    )
    with connect(common) as client:
        response = client.call(client.admin.MoveQueue, request)
        moved = response.queue_override
        view = {
            "topic": topic,
            "queue": queue,
            "to": to,
            "done": moved.moving_to == 0,
            "epochs": [epoch_view(epoch) for epoch in moved.epochs],
        }
        if wait:
            placed = _wait(client, common, topic, queue, to)
            view |= {"done": True, "epochs": [epoch_view(epoch) for epoch in placed.epochs]}
    show(view, common, rows="epochs")


def _wait(
    client: AdminClient, common: Common, topic: str, queue: int, to: int
) -> admin_pb2.GetQueueResponse:
    """Ask until the queue takes messages at raft group `to`.

    Raises:
        CliError: it does not within the time limit of one call.
    """
    deadline_s = time.monotonic() + client.timeout_s
    while True:
        response = _get(client, common, topic, queue)
        if response.raft_group == to:
            return response
        if time.monotonic() >= deadline_s:
            raise CliError(
                f"queue {queue} of {topic} is still on its way to raft group {to}; the "
                "move continues: see strata queue show"
            )
        time.sleep(_POLL_S)


def _get(client: AdminClient, common: Common, topic: str, queue: int) -> admin_pb2.GetQueueResponse:
    request = admin_pb2.GetQueueRequest(namespace=common.namespace, topic=topic, queue=queue)
    return client.call(client.admin.GetQueue, request)
