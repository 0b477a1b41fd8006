"""Ends pops whose clients have gone, in the broker's waiting room and in storage.

A cancelled call loses its answer, and the leases in it. So the broker asks storage to end the pop
and waits for the answer. One call with many numbers is under way per node. It is not repeated: a
pop that does not end is cancelled after a while.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import islice

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.lanes import NodeLanes
from strata_runtime.tasks import Tasks

_RPC = "/strata.storage.v1.StorageService/EndPops"
_MAX_NUMBERS = 4_096
# Raft groups that a text has room for.
_TROUBLES_MAX = 3


class PopTicket:
    """One receive's pop, at whatever node it is.

    Attributes:
        number: its name at storage nodes.
        ended: no client waits for it any more.
        request: last request to a node, as long as its answer is not known.
        node: the node of that request; "" while none is asked.
        on_ended: called when it is ended; the receive that waits in line sets it.
        unanswered: raft groups that did not answer until the end of the wait, and their problems.
        unsettled: last requests whose answers were lost and will not come, by raft group and queue.
    """

    __slots__ = ("ended", "node", "number", "on_ended", "request", "unanswered", "unsettled")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = False
        self.node = ""
        self.on_ended: Callable[[], None] | None = None
        self.request: storage_pb2.PopRequest | None = None
        self.unanswered: dict[int, str] = {}
        self.unsettled: dict[tuple[int, int], storage_pb2.PopRequest] = {}

    def end(self) -> None:
        """Note that no client waits for it any more, and let who waits in line know."""
        self.ended = True
        if self.on_ended is not None:
            self.on_ended()

    def trouble(self) -> str:
        """Return why messages may be there that a receive did not find; "": none is known.

        The code stays MESSAGE_NOT_FOUND: on any other one official simple consumers raise, and push
        consumers stop asking for a while, although other raft groups serve.
        """
        if not self.unanswered:
            return ""
        named = islice(self.unanswered.values(), _TROUBLES_MAX)
        return "storage did not answer: " + "; ".join(named)


class PopEnder:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self, boot_id: int, channels: NodeChannels, config: StorageClientSection, *, tasks: Tasks
    ) -> None:
        self._boot_id = boot_id
        self._channels = channels
        self._timeout_s = config.try_timeout_ms / 1000
        self._last_number = 0
        # By node; in the order in which their clients went.
        self._waiting: dict[str, dict[int, None]] = defaultdict(dict)
        self._lanes = NodeLanes("end pops", tasks, self._exchange)

    def ticket(self) -> PopTicket:
        """Return a new pop's ticket."""
        self._last_number += 1
        return PopTicket(self._last_number)

    def end(self, ticket: PopTicket) -> None:
        """End a pop: no further node is asked, and the node that was asked answers at once."""
        ticket.end()
        if ticket.node:
            # Bounded by the receives under way, each of which ends once.
            self._waiting[ticket.node][ticket.number] = None
            self._lanes.wake(ticket.node)

    def forget(self, node_id: str) -> None:
        """The node is no member any more; what waits for it is handled as before."""
        self._lanes.forget(node_id)

    async def _exchange(self, node: str) -> bool:
        waiting = self._waiting.get(node)
        if not waiting:
            self._waiting.pop(node, None)
            return False
        numbers = list(islice(waiting, _MAX_NUMBERS))
        for number in numbers:
            del waiting[number]
        request = storage_pb2.EndPopsRequest(broker_boot_id=self._boot_id, numbers=numbers)
        try:
            await self._channels.to(node).call(
                _RPC, request, storage_pb2.EndPopsResponse, timeout_s=self._timeout_s
            )
        except AngeliaError:
            # Their receives end by themselves.
            return True
        return True
