"""Takes back leases of answers that no client took.

The edge or a late receive notices this and does not wait: the release is a separate task that is
not cancelled with them. Invariant: leases that a client gets by repeating an attempt are not taken
back because of the first try.
"""

from __future__ import annotations

from collections import OrderedDict

from strata.storage.v1 import storage_pb2
from strata_broker.receives.deliver import Deliverer, Given, given_by
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import RequestError
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
        requests: owns the releases.
        metrics: counts leases that could not be released.
    """

    def __init__(
        self,
        deliverer: Deliverer,
        storage: StorageClient,
        timeout_s: float,
        *,
        requests: RequestTasks,
        metrics: Metrics,
    ) -> None:
        self._deliverer = deliverer
        self._storage = storage
        self._timeout_s = timeout_s
        self._requests = requests
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
        if receive and self._latest.get((given.consumer_group_id, attempt), receive) != receive:
            return
        self._spawn("release", given)

    def take_back_unseen(self, request: storage_pb2.PopRequest) -> None:
        """Release leases that a pop may have taken although its answer will not come."""
        if not request.auto_renew or not request.attempt:
            # It is visible again when its time is over.
            return
        again = storage_pb2.PopRequest()
        again.CopyFrom(request)
        again.wait_ms = again.number = 0
        again.repeated = again.places_only = True
        self._spawn("release unseen", again)

    def _spawn(self, name: str, what: Given | storage_pb2.PopRequest) -> None:
        work = self._release(what) if isinstance(what, Given) else self._release_unseen(what)
        try:
            self._requests.spawn(name, work)
        except RuntimeError:
            # The broker stops, or has too much to do: leases end by time or with their holder.
            self._unreleased.add()

    async def _release(self, given: Given) -> None:
        try:
            await self._deliverer.release(given, self._timeout_s)
        except RequestError as refused:
            self._unreleased.add(given.lease_count)
            self._log.info("leases not released", raft_group=given.raft_group, reason=refused.text)

    async def _release_unseen(self, request: storage_pb2.PopRequest) -> None:
        try:
            found = await self._storage.pop(request)
        except RequestError as refused:
            self._log.info("pop unknown", raft_group=request.raft_group, reason=refused.text)
            return
        await self._release(
            given_by(
                request.raft_group,
                request.consumer_group_id,
                request.topic.topic_id,
                found.messages,
            )
        )
