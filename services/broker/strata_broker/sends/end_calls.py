"""EndTransaction calls of clients, taken in batches as sends and acks are.

A call that ends a half message of a known topic, with an id that this cluster gave, costs no task:
`GatheredEnds` sends it to storage with the others of its turn and it is answered from there. Every
other call (unknown names, wrong ids, missing rights, no decision) is served alone, by the handler
that other protocols use, with its checks, refusals and texts.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import Principal, topic_target
from strata_broker.base import errors
from strata_broker.base.call_room import CallRoom
from strata_broker.base.parsing import parse
from strata_broker.base.shares import Owner, all_owners_of
from strata_broker.metadata.requests import caller_of, time_for
from strata_broker.sends.gathered_ends import EndedAt
from strata_broker.sends.transactions import EndedHalf, Transactions, not_ended
from strata_edge.ports import MISTAKE, CallError, HotCall, UnaryHandler
from strata_mq.access import Action
from strata_mq.requests import Code, RequestError

END = "EndTransaction"

_OK = service_pb2.EndTransactionResponse(status=errors.ok_status()).SerializeToString()


class EndCalls:
    """See the module docstring. Used on the event loop only.

    Args:
        transactions: ends them.
        room: bounds the calls under way.
        alone: serves one call with all checks.
        runtime: configuration, clock and counters.
    """

    def __init__(
        self,
        transactions: Transactions,
        room: CallRoom,
        alone: UnaryHandler,
        *,
        runtime: CallRuntime,
    ) -> None:
        config = runtime.config
        self._alone = alone
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._requests = runtime.requests
        self._recorder = runtime.recorder
        self.transactions = transactions
        self.room = room

    def take(self, call: HotCall, principal: Principal, started_s: float) -> None:
        """Take an EndTransaction; it is answered later, or fails.

        Args:
            call: the EndTransaction.
            principal: who calls.
            started_s: when the turn began, by the monotonic clock.
        """
        found = self._usual(call, principal)
        if found is None:
            self._spawn_alone(call, started_s)
            return
        named, owners = found
        timeout_s = time_for(call.time_left_s(), self._timeout_s, self._max_timeout_s)
        pending = _PendingEnd(self, call, named, owners=owners, started_s=started_s)
        self.transactions.ends.add(named.raft_group, named.half, timeout_s, pending)

    def answer(self, call: HotCall, started_s: float) -> None:
        """Answer a call whose half is ended."""
        call.complete((_OK,))
        self._recorder.answered(END, Code.OK, started_s)

    def refuse(self, call: HotCall, refusal: RequestError, started_s: float) -> None:
        """Answer a call whose half is not."""
        response = service_pb2.EndTransactionResponse(status=errors.status_of(refusal))
        call.complete((response.SerializeToString(),))
        self._recorder.answered(END, refusal.code, started_s)

    def _usual(
        self, call: HotCall, principal: Principal
    ) -> tuple[EndedHalf, tuple[Owner, ...]] | None:
        """Return what a usual call ends and the room that was taken; None: it is not usual."""
        try:
            request = parse(service_pb2.EndTransactionRequest, call.request)
            caller = caller_of(call.metadata)
            named = self.transactions.named(caller, request)
            if named is None:
                return None
            if not principal.may(*topic_target(caller.name_of(request.topic)), Action.PUB):
                return None
            owners = all_owners_of(caller.client_id, call.peer)
            self.room.take(owners)
        except (DecodeError, RequestError):
            return None
        return named, owners

    def _spawn_alone(self, call: HotCall, started_s: float) -> None:
        try:
            self._requests.spawn(
                END, self._serve_alone(call), lambda _: call.fail("INTERNAL", MISTAKE)
            )
        except RuntimeError:
            # Too many tasks run, or the broker stops.
            self.refuse(call, errors.too_many_requests(), started_s)

    async def _serve_alone(self, call: HotCall) -> None:
        try:
            answer = await self._alone(call.request, call)
        except CallError as error:
            call.fail(error.status, error.reason)
        else:
            call.complete((answer,))


class _PendingEnd:
    """A call under way; the `EndWaiter` of its half."""

    __slots__ = ("_call", "_calls", "_named", "_owners", "_started_s")

    def __init__(
        self,
        calls: EndCalls,
        call: HotCall,
        named: EndedHalf,
        *,
        owners: tuple[Owner, ...],
        started_s: float,
    ) -> None:
        self._calls = calls
        self._call = call
        self._named = named
        self._owners = owners
        self._started_s = started_s

    def ended(self, place: EndedAt) -> None:
        """See `EndWaiter`."""
        calls = self._calls
        self._give_back()
        calls.transactions.count(self._named.half.end, self._named.topic)
        calls.answer(self._call, self._started_s)

    def failed(self, failure: RequestError) -> None:
        """See `EndWaiter`."""
        self._give_back()
        self._calls.refuse(self._call, not_ended(failure), self._started_s)

    def _give_back(self) -> None:
        owners, self._owners = self._owners, ()
        if owners:
            self._calls.room.give_back(owners)
