"""Calls a raft group's leader; repeats the call, maybe at another node, while time is left.

Role: tries, their times, and repeats. A call is repeated after a refusal that says "not here", a
lost connection, silence while there are other replicas, or a report of another node that it leads
now, which ends the try under way. Invariant: a caller sees latency; it sees an error only when its
time is over or when storage refused for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import OVERLOADED, AngeliaError
from strata_broker.base import errors
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.storage_client.attempts import Attempts
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import Look
from strata_mq.requests import Code, RequestError
from strata_runtime.backoff import Backoff, Random
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

SERVICE = "/strata.storage.v1.StorageService/"

Response = TypeVar("Response", bound=Message)

LED_ELSEWHERE = "led elsewhere"
"""Reason of a repeat: another node said that it leads while a call was under way."""

TELLS_NOTHING = frozenset(
    (
        storage_pb2.OUTCOME_DISK_FULL,
        storage_pb2.OUTCOME_READ_ONLY,
        storage_pb2.OUTCOME_OVERLOADED,
        storage_pb2.OUTCOME_TOO_MANY_WAITERS,
    )
)
"""Refusals that a node may give before it looks whether it carried out an earlier try."""

_OK_OUTCOMES = frozenset((storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK))


class _NotNow(Exception):
    """A try had no result; another one may.

    Attributes:
        unknown: whether the call was carried out is unknown.
    """

    def __init__(self, *, unknown: bool) -> None:
        super().__init__()
        self.unknown = unknown


class StorageClient:
    """Calls that name one raft group and carry a refusal in their response."""

    def __init__(
        self,
        leaders: LeaderMap,
        channels: NodeChannels,
        config: StorageClientSection,
        *,
        clock: Clock,
        random: Random,
        metrics: Metrics,
    ) -> None:
        self._leaders = leaders
        self._channels = channels
        self._config = config
        self._clock = clock
        self._random = random
        self._retries = metrics.counter("strata_broker_storage_retries_total")
        self._attempts = Attempts()
        self._on_unreadable: Callable[[int], None] = lambda raft_group: None
        leaders.on_leader(self._led_elsewhere)

    def on_unreadable(self, listener: Callable[[int], None]) -> None:
        """Call back with a raft group whose leader's disk could not read what was asked for."""
        self._on_unreadable = listener

    def has_leader(self, raft_group: int) -> bool:
        """Whether a node says that it leads the raft group."""
        return bool(self._leaders.leader_of(raft_group))

    async def call(
        self,
        raft_group: int,
        rpc: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> Response:
        """Call a unary RPC of the raft group's leader.

        Args:
            raft_group: who it is for.
            rpc: name of the RPC; of another service than storage's own, its whole path.
            request: carries the same raft group.
            response_type: has a field `refusal`.
            timeout_s: time for all tries; None: `call_timeout_ms`.
            wait_s: how much longer the call may take because the request says that it waits; a
                repeat has what is left of it, also in its field `wait_ms` if it has one.

        Raises:
            RequestError: refused for good, or no answer in time.
        """
        if timeout_s is None:
            timeout_s = self._config.call_timeout_ms / 1000
        wait_ends_s = self._clock.monotonic_s() + wait_s
        deadline_s = wait_ends_s + timeout_s
        left_wait_s = wait_s
        may_be_done = False
        backoff = self._backoff(self._config.max_retry_ms)
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            try_s = self._try_s(raft_group, left_s - left_wait_s) + left_wait_s
            try:
                return await self._try(
                    raft_group, rpc, request, response_type, try_s, may_be_done=may_be_done
                )
            except _NotNow as failure:
                if failure.unknown:
                    may_be_done = may_be_done or _changes_something(rpc, request)
                    request = _repeat_of(request)
                await self._pause(raft_group, backoff, deadline_s)
            if left_wait_s:
                left_wait_s = max(wait_ends_s - self._clock.monotonic_s(), 0.0)
                request = _waiting(request, left_wait_s)
        raise errors.timed_out(self._leaders.explain(raft_group))

    async def pop(
        self,
        request: storage_pb2.PopRequest,
        ticket: PopTicket | None = None,
        look: Look | None = None,
        *,
        must_settle: bool = False,
    ) -> storage_pb2.PopResponse:
        """Pop at the present leader of the raft group, for as long as the request waits.

        A try without an answer may have taken leases: the next one asks for them, in this pop or in
        the ticket's next one at this place. If there is none, `ticket.unsettled` has the request,
        also when this raises.

        Args:
            request: what is wanted; it carries the ticket's number.
            ticket: by which it can be ended before.
            look: names the stream on which a node is to tell of messages that come later.
            must_settle: ask for `call_timeout_ms` longer while an answer is lost; so do pops of
                auto-renewed leases.

        Returns:
            The leased messages; none when the wait ends, also while there is no leader: this is no
            error for a consumer.

        Raises:
            RequestError: refused for good.
        """
        place = request.raft_group, request.queue
        if ticket is not None and ticket.unsettled.pop(place, None) is not None:
            request.repeated = True
        wait_ends_s = self._clock.monotonic_s() + request.wait_ms / 1000
        # Auto-renewed leases of a pop whose answer was lost are asked for after the wait, too: they
        # would end with their holder only.
        settled_by_s = wait_ends_s + self._config.call_timeout_ms / 1000
        # Thousands may wait: while nobody leads they ask seldom.
        backoff = self._backoff(self._config.max_parked_retry_ms)
        left_s = request.wait_ms / 1000
        while True:
            # A parked pop is silent for its wait; leases that it took at the end must not be lost.
            try_s = left_s + self._config.call_timeout_ms / 1000
            try:
                return await self._try_pop(request, try_s, ticket, look)
            except _NotNow as failure:
                repeated = request.repeated or (failure.unknown and bool(request.attempt))
                is_settled = repeated and (must_settle or request.auto_renew)
                ends_s = settled_by_s if is_settled else wait_ends_s
                if ticket is None or not ticket.ended:
                    await self._pause(request.raft_group, backoff, ends_s)
            now_s = self._clock.monotonic_s()
            if ticket is not None and ticket.ended:
                wait_ends_s = min(wait_ends_s, now_s)
                settled_by_s = min(settled_by_s, now_s + self._config.call_timeout_ms / 1000)
                ends_s = settled_by_s if is_settled else now_s
            if now_s >= ends_s:
                if ticket is not None:
                    if repeated:
                        ticket.unsettled[place] = request
                    ticket.unanswered[request.raft_group] = self._leaders.explain(
                        request.raft_group
                    )
                return storage_pb2.PopResponse()
            left_s = max(wait_ends_s - now_s, 0.0)
            # A new object: the last one may still be on its way.
            again = storage_pb2.PopRequest()
            again.CopyFrom(request)
            again.wait_ms = int(left_s * 1000)
            again.repeated = repeated
            request = again

    async def _try_pop(
        self,
        request: storage_pb2.PopRequest,
        try_s: float,
        ticket: PopTicket | None,
        look: Look | None,
    ) -> storage_pb2.PopResponse:
        if look is not None:
            request.tell_stream = look.asks(self._leaders.node_of(request.raft_group) or "")
        if ticket is None:
            return await self._try(
                request.raft_group, "Pop", request, storage_pb2.PopResponse, try_s
            )
        ticket.node = self._leaders.node_of(request.raft_group) or ""
        ticket.request = request
        try:
            response = await self._try(
                request.raft_group, "Pop", request, storage_pb2.PopResponse, try_s
            )
        except RequestError as refused:
            if request.repeated or isinstance(refused.__cause__, AngeliaError):
                # This try, or one before it, may have taken leases.
                ticket.unsettled[request.raft_group, request.queue] = request
            raise
        finally:
            ticket.node = ""
        ticket.request = None
        ticket.unanswered.pop(request.raft_group, None)
        return response

    async def node_status(
        self, node_id: str, timeout_s: float
    ) -> storage_pb2.GetStatusResponse | None:
        """Return a node's report of its replicas; None when it does not answer."""
        try:
            return await self._channels.to(node_id).call(
                SERVICE + "GetStatus",
                storage_pb2.GetStatusRequest(),
                storage_pb2.GetStatusResponse,
                timeout_s=timeout_s,
            )
        except AngeliaError:
            return None

    def _backoff(self, max_ms: int) -> Backoff:
        return Backoff(self._config.first_retry_ms, max_ms, self._random)

    def _try_s(self, raft_group: int, left_s: float) -> float:
        """Return the time of one try: all the time left if no other replica could answer."""
        if self._leaders.has_other_replicas(raft_group):
            return min(left_s, self._config.try_timeout_ms / 1000)
        return left_s

    async def _try(
        self,
        raft_group: int,
        rpc: str,
        request: Message,
        response_type: type[Response],
        try_s: float,
        *,
        may_be_done: bool = False,
    ) -> Response:
        """Ask the node that is believed to lead; `may_be_done`: an earlier try has no answer.

        Raises:
            _NotNow: ask again.
            RequestError: refused for good.
        """
        node = self._leaders.node_of(raft_group)
        if node is None:
            raise self._not_now("unknown raft group", unknown=False)
        path = rpc if rpc.startswith("/") else SERVICE + rpc
        try:
            async with self._attempts.of(raft_group, node):
                response = await self._channels.to(node).call(
                    path, request, response_type, timeout_s=try_s
                )
        except TimeoutError:
            raise self._not_now(LED_ELSEWHERE, unknown=True) from None
        except AngeliaError as failure:
            if failure.code not in errors.REPEATED_ANGELIA_CODES:
                raise errors.lost(failure) from failure
            self._leaders.failed(raft_group, node, failure.code)
            raise self._not_now(failure.code, unknown=failure.code != OVERLOADED) from failure
        refusal: storage_pb2.Refusal = response.refusal  # type: ignore[attr-defined]
        if refusal.outcome in _OK_OUTCOMES:
            self._leaders.answered(node)
            return response
        if refusal.outcome == storage_pb2.OUTCOME_UNREADABLE:
            self._on_unreadable(raft_group)
        if refusal.outcome not in errors.REPEATED_OUTCOMES:
            refused = errors.refused(refusal.outcome, refusal.reason)
            if may_be_done and refusal.outcome in TELLS_NOTHING:
                raise refused_repeat(refused)
            raise refused
        self._leaders.refused(raft_group, node, refusal.leader_node_id)
        # Leadership may be lost while the call's proposal is on its way to a majority.
        lost = refusal.outcome == storage_pb2.OUTCOME_NOT_LEADER
        raise self._not_now(storage_pb2.Outcome.Name(refusal.outcome), unknown=lost)

    def _not_now(self, reason: str, *, unknown: bool) -> _NotNow:
        self._retries.add(1, {"reason": reason})
        return _NotNow(unknown=unknown)

    async def _pause(self, raft_group: int, backoff: Backoff, deadline_s: float) -> None:
        """Wait before the next try, but only until there is a leader."""
        pause_s = min(backoff.next_s(), deadline_s - self._clock.monotonic_s())
        if pause_s > 0:
            with suppress(TimeoutError):
                async with self._attempts.of(raft_group):
                    await asyncio.sleep(pause_s)

    def _led_elsewhere(self, raft_group: int, leader: str) -> None:
        """A node says that it leads: calls to other nodes of the raft group are repeated there.

        A healthy former leader answers its calls within the grace, so that its leases are not
        lost.
        """
        grace_s = self._config.former_leader_grace_ms / 1000
        self._attempts.give_up(raft_group, unless_asked=leader, grace_s=grace_s)


SAFE_TO_REPEAT = {
    "Append": "by sequence: a repeat of a batch gets the first one's result",
    "Release": "a lease that holds no more is passed over",
    "EndTransaction": "how a message ended is kept; the same end again is OK, another is refused",
    "Recall": "what was taken back is kept; taking it back again is OK",
    "ResetConsumer": "sets a position; leases taken between two tries are void",
    "Purge": "names the offsets at which queues begin afterwards",
    "ReportClients": "says who lives now",
    "ReportChecks": "a check that counts already is passed over",
    "EndPops": "a pop that ended is passed over",
    "Flush": "waits",
    "Seal": "an epoch that is sealed stays sealed",
    "Open": "an epoch that is open stays open",
    "Rehash": "a queue count that is in force stays",
    "Drop": "what is dropped stays dropped",
    "TransferLeadership": "asks for a state",
}
"""Calls that change something, and why a repeat gets the answer of the first try (rule 37).

All other calls that change something have a field `repeated`: storage then looks for the effect of
an earlier try. If that is unknown, a call ends as not answered in time, never as refused.
"""


def refused_repeat(refused: RequestError) -> RequestError:
    """Return the error for a call of which one try has no answer, and the next one was refused.

    The first try may have been carried out: the answer never says "refused" (rule 37).
    """
    return RequestError(
        Code.PROXY_TIMEOUT,
        f"storage did not answer a try, and refused the next one: {refused.text}",
    )


def _changes_something(rpc: str, request: Message) -> bool:
    return rpc in SAFE_TO_REPEAT or "repeated" in request.DESCRIPTOR.fields_by_name


def _waiting(request: Message, wait_s: float) -> Message:
    """Return a call that waits for so long at storage, if it can say so."""
    if "wait_ms" not in request.DESCRIPTOR.fields_by_name:
        return request
    # A new object: the last one may still be on its way.
    again = type(request)()
    again.CopyFrom(request)
    again.wait_ms = int(wait_s * 1000)  # type: ignore[attr-defined]
    return again


def _repeat_of(request: Message) -> Message:
    """Return a call that says that an earlier try may have been carried out, if it can say so."""
    if "repeated" not in request.DESCRIPTOR.fields_by_name:
        return request
    # A new object: the last one may still be on its way.
    again = type(request)()
    again.CopyFrom(request)
    again.repeated = True  # type: ignore[attr-defined]
    return again
