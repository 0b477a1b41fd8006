"""The commands of `strata slot`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import time
from typing import Annotated

import grpc
from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, CallFailed, connect
from strata_cli.cluster_views import slots_view
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common
from strata_cli.output import show

_POLL_S = 0.1

app = App(name="slot", help="Slots: they decide which raft group gets a new queue.")


@app.command(name="list")
def list_(*, raft_group: int = 0, common: Common = COMMON) -> None:
    """List the slots with the raft groups that own them, and the slots that are moving.

    For instance: strata slot list -o json

    Args:
        raft_group: List only slots that this raft group owns, gives up or gets.
    """
    with connect(common) as client:
        response = client.call(client.admin.ListSlots, admin_pb2.ListSlotsRequest())
    view = slots_view(response, raft_group)
    if common.for_programs or raft_group:
        show(view, common, rows="ranges")
        return
    # People read the number of slots per raft group, not thousands of ranges.
    show({"moves": view["moves"], "raft_groups": view["raft_groups"]}, common, rows="raft_groups")


@app.command
def move(
    first_slot: Annotated[int, Parameter(help="Number of the first slot.")],
    slot_count: Annotated[int, Parameter(help="How many.")],
    /,
    *,
    to: int,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    common: Common = COMMON,
) -> None:
    """Move slots to another raft group: queues without messages move, other queues stay.

    The command waits, within --timeout, until the raft group owns all these slots. Unless
    nameserver.balance_slots is off, other slots leave the raft group in exchange.

    For instance: strata slot move 0 64 --to 5

    Args:
        to: Number of the raft group.
        wait: Return when all slots have moved, not when some have begun to move.
    """
    request = admin_pb2.MoveSlotsRequest(
        first_slot=first_slot, slot_count=slot_count, to_raft_group=to
    )
    with connect(common) as client:
        left = _move(client, request, wait=wait)
    view = {"first_slot": first_slot, "slot_count": slot_count, "to": to}
    show(view | {"left": left, "done": left == 0}, common)


def _move(client: AdminClient, request: admin_pb2.MoveSlotsRequest, *, wait: bool) -> int:
    """Begin to move slots, repeatedly with `wait`; return how many are left.

    A raft group may be without a leader for a moment, which is no reason to give up.

    Raises:
        CliError: some are left after the time limit of one call.
    """
    deadline_s = time.monotonic() + client.timeout_s
    while True:
        is_late = time.monotonic() >= deadline_s
        try:
            left: int = client.call(client.admin.MoveSlots, request).left
        except CallFailed as failure:
            if is_late or not wait or failure.status is not grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(_POLL_S)
            continue
        if not left or not wait:
            return left
        if is_late:
            raise CliError(
                f"{left} slots are still on their way to raft group {request.to_raft_group}, or "
                "wait for other slots to arrive; run the command again to move those too"
            )
        time.sleep(_POLL_S)
