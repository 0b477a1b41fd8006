"""Calls that the remoting protocol makes of the broker's handlers: who calls, and the hot calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from strata_broker.access.authentication import AdmittedCall
from strata_broker.access.principals import Principal
from strata_broker.base.future_call import FutureCall
from strata_broker.receives.pending_ack import ACK
from strata_broker.receives.popping_calls import PoppingCall
from strata_broker.receives.receive import RECEIVE
from strata_broker.sends.named_queue import QueuedCall
from strata_broker.sends.pending_send import SEND


class FaceCaller(AdmittedCall):
    """A `CallInfo` of a remoting client's call.

    Args:
        metadata: as a gRPC client would give it.
        peer: `host:port` of the connection.
        principal: who signed the request; None: nobody was admitted.
        claimed: name of the user as it was claimed.
    """

    def __init__(
        self,
        metadata: Mapping[str, str],
        peer: str,
        principal: Principal | None = None,
        *,
        claimed: str = "",
    ) -> None:
        self.metadata = metadata
        self.peer = peer
        self.principal = principal
        self.claimed = claimed

    def time_left_s(self) -> float | None:
        """See `CallInfo`; the protocol has no deadlines."""
        return None


class _FaceCall(AdmittedCall, FutureCall):
    """A hot call of a remoting client."""

    method = ""

    def __init__(self, request: bytes, caller: FaceCaller) -> None:
        FutureCall.__init__(self)
        self.request = request
        self.metadata = caller.metadata
        self.peer = caller.peer
        self.principal = caller.principal
        self.claimed = caller.claimed

    def time_left_s(self) -> float | None:
        """See `HotCall`; the protocol has no deadlines."""
        return None


class FaceSend(QueuedCall, _FaceCall):
    """A send to a queue."""

    method = SEND

    def __init__(self, request: bytes, caller: FaceCaller, queue: int) -> None:
        QueuedCall.__init__(self, queue)
        _FaceCall.__init__(self, request, caller)


class FaceAck(_FaceCall):
    """An ack."""

    method = ACK


class FacePop(PoppingCall, _FaceCall):
    """A receive that ends early when its client goes, and gives back what nobody took.

    Args:
        request: a ReceiveMessageRequest.
        caller: who pops.
        queue: see `PoppingCall`.
        wait_ms: likewise.
    """

    method = RECEIVE

    def __init__(self, request: bytes, caller: FaceCaller, queue: int, *, wait_ms: int) -> None:
        PoppingCall.__init__(self, queue, wait_ms)
        _FaceCall.__init__(self, request, caller)
        self._on_gone: Callable[[], None] | None = None
        self._on_not_taken: Callable[[], None] | None = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """See `HotCall.on_gone`."""
        self._on_gone = callback

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """See `HotCall.complete`."""
        if not self.answer.done():
            self._on_not_taken = on_not_taken
        super().complete(responses, on_not_taken)

    def gone(self) -> None:
        """End the wait of a pop whose client has gone."""
        if not self.answer.done():
            self.answer.set_exception(ConnectionResetError("the client is gone"))
            self._leave()

    def not_taken(self) -> None:
        """Note that the client did not get the answer, or that nobody waits for it any more."""
        if self.answer.cancelled():
            self._leave()
        callback, self._on_not_taken = self._on_not_taken, None
        if callback is not None:
            callback()

    def _leave(self) -> None:
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()
