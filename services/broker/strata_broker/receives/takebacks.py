"""Takes back leases of answers that no client took.

The edge or a late receive notices this and does not wait: the release is a separate task that is
not cancelled with them. It also takes back what a pop may have leased whose answer was lost with a
leader: its raft group is asked until it answers, for a limited time. Invariant: leases that a
client gets by repeating an attempt are not taken back because of the first try.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Coroutine, Sequence

from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.receives.deliver import Deliverer, Given, given_by
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

# Attempts of ordered groups whose last receive is remembered.
_MAX_ATTEMPTS = 10_000


class Takebacks:
    """See the module docstring. Used on the event loop only.

    Args:
        deliverer: releases leases.
        storage: is asked for the leases of a pop whose answer is unknown.
        timeout_s: time limit of a release.
        config: limits of take-backs whose leases are not known.
        clock: measures their time.
        requests: owns the releases.
        metrics: counts leases that could not be released.
    """

    def __init__(
        self,
        deliverer: Deliverer,
        storage: StorageClient,
        timeout_s: float,
        *,
        config: ReceiveSection,
        clock: Clock,
        requests: RequestTasks,
        metrics: Metrics,
    ) -> None:
        self._deliverer = deliverer
        self._storage = storage
        self._timeout_s = timeout_s
        self._requests = requests
        self._clock = clock
        self._unseen_s = config.unseen_take_back_ms / 1000
        self._max_unseen = config.max_unseen_take_backs
        self._unseen = 0
        metrics.gauge("strata_broker_unseen_take_backs", lambda: self._unseen)
        self._last_receive = 0
        # (consumer group id, attempt) -> the receive that asked for it last
        self._latest: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._unreleased = metrics.counter("strata_broker_unreleased_total")
        self._log = get_logger("broker")

    def receive_of(self, consumer_group_id: int, attempt: int) -> int:
        """Note that a receive asks for an attempt of an ordered group; return the receive's number.

        Storage gives the leases of an attempt again when it is repeated.
        """
        self._last_receive += 1
        key = (consumer_group_id, attempt)
        self._latest[key] = self._last_receive
        self._latest.move_to_end(key)
        if len(self._latest) > _MAX_ATTEMPTS:
            self._latest.popitem(last=False)
        return self._last_receive

    def take_back(self, given: Given, attempt: int = 0, receive: int = 0) -> None:
        """Release leases that no client got.

        Args:
            given: the leases.
            attempt: of an ordered group's receive, 0 for others.
            receive: its number, see `receive_of`.
        """
        if not given.packed:
            return
        if self._is_latest(given.consumer_group_id, attempt, receive):
            self._spawn("release", self._release(given))

    def take_back_unseen(
        self, request: storage_pb2.PopRequest | None, receive: int = 0, seen: Given | None = None
    ) -> None:
        """Release leases that a pop may have taken although its answer will not come.

        Nobody was given them: they are no attempt (rule 36).

        Args:
            request: the pop, by its last request; None: it took nothing.
            receive: its number, see `receive_of`.
            seen: what another pop of the receive took, maybe at the same raft group: storage names
                it, too, since both have one attempt. It stays.
        """
        if request is None or not request.attempt:
            return
        if self._unseen >= self._max_unseen:
            self._unreleased.add()
            return
        again = storage_pb2.PopRequest()
        again.CopyFrom(request)
        again.wait_ms = again.number = again.tell_stream = 0
        again.max_messages = 1  # of an older storage node, which takes something new
        again.repeated = again.places_only = again.taken_only = True
        # Counted here: many may begin in one turn of the event loop.
        self._unseen += 1
        if not self._spawn("release unseen", self._release_unseen(again, receive, seen)):
            self._unseen -= 1

    def _is_latest(self, consumer_group_id: int, attempt: int, receive: int) -> bool:
        """Whether no later receive asked for the attempt of an ordered group."""
        return not receive or self._latest.get((consumer_group_id, attempt), receive) == receive

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> bool:
        """Begin a release; return whether it has begun."""
        try:
            self._requests.spawn(name, work)
        except RuntimeError:
            # The broker stops, or has too much to do: leases end by time or with their holder.
            self._unreleased.add()
            return False
        return True

    async def _release(self, given: Given) -> None:
        try:
            await self._deliverer.release(given, self._timeout_s)
        except RequestError as refused:
            self._unreleased.add(given.lease_count)
            self._log.info("leases not released", raft_group=given.raft_group, reason=refused.text)

    async def _release_unseen(
        self, request: storage_pb2.PopRequest, receive: int, seen: Given | None
    ) -> None:
        try:
            found = await self._ask_again(request)
        except RequestError as refused:
            self._log.info("pop unknown", raft_group=request.raft_group, reason=refused.text)
            return
        finally:
            self._unseen -= 1
        group_id = request.consumer_group_id
        # The client may have repeated it meanwhile.
        if found and self._is_latest(group_id, request.attempt, receive):
            given = given_by(request.raft_group, group_id, request.topic.topic_id, found)
            await self._release(given if seen is None else given.without(seen))

    async def _ask_again(
        self, request: storage_pb2.PopRequest
    ) -> Sequence[storage_pb2.LeasedMessage]:
        """Return what a pop took, as soon as its raft group says so.

        Raises:
            RequestError: refused for good, or no answer in time.
        """
        ends_s = self._clock.monotonic_s() + self._unseen_s
        while True:
            ticket = PopTicket(0)
            found = await self._storage.pop(request, ticket, must_settle=True)
            if not ticket.unanswered:
                return found.messages
            if self._clock.monotonic_s() >= ends_s:
                self._unreleased.add()
                raise errors.timed_out(ticket.trouble())
