"""Dispatches the hot calls of one turn of the event loop.

Calls of many clients arrive together. An exception in one call answers only that call; the other
calls are served normally (rule 33).
"""

from __future__ import annotations

from collections.abc import Sequence

from apache.rocketmq.v2 import service_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import AccessRefused
from strata_broker.base import errors, wire
from strata_broker.base.failures import unexpected
from strata_broker.receives.ack import Acknowledger
from strata_broker.receives.pending_ack import ACK
from strata_broker.receives.receive import RECEIVE, Receiver
from strata_broker.sends.end_calls import END, EndCalls
from strata_broker.sends.named_queue import QueuedCall
from strata_broker.sends.pending_send import SEND
from strata_broker.sends.send import Sender
from strata_broker.servicers.paced_calls import PacedCalls
from strata_broker.servicers.plugins import TakesSends
from strata_edge.ports import HotCall
from strata_mq.requests import RequestError
from strata_runtime.tasks import TooManyTasksError

_RESPONSES = {
    SEND: service_pb2.SendMessageResponse,
    ACK: service_pb2.AckMessageResponse,
    END: service_pb2.EndTransactionResponse,
}
"""Types of the answers of methods with one answer."""


class HotCalls:
    """The `HotHandler` that a broker gives to its edge.

    Acks are served first: they free resources for sends and receives (rule 15).

    Args:
        sender: takes sends.
        receiver: takes receives.
        acknowledger: takes acks.
        ends: take ends of transactions.
        runtime: configuration, clock and counters.
        plugins: may take sends that are no messages.
    """

    def __init__(
        self,
        sender: Sender,
        receiver: Receiver,
        acknowledger: Acknowledger,
        *,
        ends: EndCalls,
        runtime: CallRuntime,
        plugins: Sequence[TakesSends] = (),
    ) -> None:
        recorder, refusals = runtime.recorder, runtime.config.refusals
        self._paced = PacedCalls(recorder.pace, self._take_later, refusals, metrics=runtime.metrics)
        self._plugins = tuple(plugins)
        self._sender = sender
        self._receiver = receiver
        self._acknowledger = acknowledger
        self._ends = ends
        self._access = runtime.access
        self._requests = runtime.requests
        self._recorder = recorder
        self._clock = runtime.clock

    def handle(self, calls: Sequence[HotCall]) -> None:
        """See `ports.HotHandler`."""
        started_s = self._clock.monotonic_s()
        acks = [call for call in calls if call.method == ACK]
        others = [call for call in calls if call.method != ACK] if acks else calls
        try:
            for call in acks:
                self._take_in_turn(call, started_s)
        finally:
            self._stage_acks(started_s)
        try:
            for call in self._take_alike(others, started_s):
                self._take_in_turn(call, started_s)
        finally:
            self._sender.stage_gathered()

    def _take_alike(self, calls: Sequence[HotCall], started_s: float) -> Sequence[HotCall]:
        """Take sends that are alike; return the calls that are to be taken one by one."""
        sends: list[HotCall] = []
        others: list[HotCall] = []
        for call in calls:
            # The headers of a send do not say all of one that names a queue.
            is_usual = call.method == SEND and not isinstance(call, QueuedCall)
            (sends if is_usual else others).append(call)
        if len(sends) < 2:
            return calls
        return self._sender.gather_alike(sends, started_s, self._paced.lets_pass) + others

    def _stage_acks(self, started_s: float) -> None:
        """Stage the acks that were gathered; what cannot be staged with others is taken alone."""
        for call in self._acknowledger.stage_gathered():
            self._take(call, started_s, gathers=False)

    def _take_in_turn(self, call: HotCall, started_s: float) -> None:
        try:
            if self._paced.holds_back(call):
                return
        except RequestError as full:
            self._refuse(call, full, started_s)
            return
        self._take(call, started_s)

    def _take_later(self, call: HotCall) -> None:
        """Take a call that was held back."""
        started_s = self._clock.monotonic_s()
        self._take(call, started_s)
        self._stage_acks(started_s)
        self._sender.stage_gathered()

    def _take(self, call: HotCall, started_s: float, *, gathers: bool = True) -> None:
        try:
            principal = self._access.principal_of_call(call)
            method = call.method
            if method == ACK:
                if gathers:
                    self._acknowledger.gather(call, principal, started_s)
                else:
                    self._acknowledger.take(call, principal)
            elif method == RECEIVE:
                self._receiver.take(call, principal)
            elif method == SEND:
                for plugin in self._plugins:
                    if plugin.takes_send(call, principal):
                        return
                self._sender.gather(call, principal, started_s)
            elif method == END:
                self._ends.take(call, principal, started_s)
        except AccessRefused as unknown:
            self._refuse(call, unknown, started_s)
            self._access.tell_refused(unknown, call, call.method)
            self._recorder.pace.refused(call.peer, (unknown.code,))
        except TooManyTasksError:
            self._refuse(call, errors.too_many_requests(), started_s)
        except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
            self._requests.failed(call.method, failure)
            self._refuse(call, unexpected(), started_s)

    def _refuse(self, call: HotCall, failure: RequestError, started_s: float) -> None:
        call.complete(_refusal(call.method, failure, self._clock.wall_ms()))
        self._recorder.answered(call.method, failure.code, started_s)


def _refusal(method: str, failure: RequestError, wall_ms: int) -> list[bytes]:
    """Return the answer to a hot call when only its method is known."""
    if method == RECEIVE:
        return [
            wire.receive_status(failure.code, failure.text),
            wire.delivery_timestamp(wall_ms),
        ]
    response = _RESPONSES[method](status=errors.status_of(failure))
    return [response.SerializeToString()]
