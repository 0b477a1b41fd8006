"""Sends that name the queue of their messages, as clients of the remoting protocol do.

A gRPC client leaves the choice to the broker (rule 23). A remoting client chooses a queue of its
route and is told an offset of that queue, so its messages are stored there and nowhere else.
"""

from __future__ import annotations

from strata_broker.metadata.metadata import LEADER_CHOOSES
from strata_edge.ports import HotCall


class QueuedCall:
    """Base of the hot calls that name a queue.

    Args:
        queue: number of the queue in its topic; `LEADER_CHOOSES` for any.
    """

    def __init__(self, queue: int) -> None:
        self.queue = queue


def named_queue(call: HotCall) -> int:
    """Return the queue that a send names; `LEADER_CHOOSES`: it names none."""
    return call.queue if isinstance(call, QueuedCall) else LEADER_CHOOSES
