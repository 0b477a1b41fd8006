"""Receives that say more than a gRPC client can: pops of the remoting protocol.

A gRPC client that is no push consumer gets messages of any queue, waits for 5 seconds at least and
hides messages for 10 seconds at least. A remoting client may name a queue, and any times.
"""

from __future__ import annotations

from strata_edge.ports import HotCall
from strata_mq.requests import Limits, check_change_invisible, check_receive_invisible


class PoppingCall:
    """Base of the hot calls that are such pops.

    Args:
        queue: number of the queue in its topic; `ANY_QUEUE` for any.
        wait_ms: how long the pop waits for messages; the broker's longest wait bounds it.
    """

    def __init__(self, queue: int, wait_ms: int) -> None:
        self.queue = queue
        self.wait_ms = wait_ms


def check_invisible(limits: Limits, call: HotCall, invisible_ms: int) -> None:
    """Check the invisible duration of a receive that renews its leases itself.

    Raises:
        RequestError: ILLEGAL_INVISIBLE_TIME.
    """
    if isinstance(call, PoppingCall):
        check_change_invisible(limits, invisible_ms)
    else:
        check_receive_invisible(limits, invisible_ms)
