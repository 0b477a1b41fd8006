"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: the ends of a lease.

All three take receipt handles from any broker; none needs state of this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import Principal, topic_target
from strata_broker.base import errors, wire
from strata_broker.base.failures import unexpected
from strata_broker.base.parsing import parse
from strata_broker.base.shares import SHARING, Owner, OwnerShares, owners_of
from strata_broker.clients.provision import Provisioner
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.metadata.recorder import Recorder
from strata_broker.metadata.requests import Caller, caller_of, milliseconds, time_for
from strata_broker.receives.handles import HandleReader
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.storage_client.ack_lanes import Acker
from strata_broker.storage_client.storage_client import StorageClient
from strata_edge.ports import HotCall
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import (
    Code,
    ReceiptHandle,
    RequestError,
    check_change_invisible,
    check_consumer_group,
    check_not_own_consumer_group,
)
from strata_runtime.limits import Limit

ACK = "AckMessage"


class Acknowledger:
    """Serves AckMessage.

    The size of a request is checked before it is parsed. Requests that wait for storage are
    bounded in entries and in bytes, for all and for each client and connection.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        acker: Acker,
        *,
        unclaimed: Unclaimed,
        runtime: CallRuntime,
    ) -> None:
        config, metrics = runtime.config, runtime.metrics
        self._unclaimed = unclaimed
        self._view = provisioner.view
        self._provisioner = provisioner
        self._handles = HandleReader(provisioner.view, runtime.handles)
        self._acker = acker
        self._access = runtime.access
        self._config = config.ack
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._clock = runtime.clock
        self._recorder = runtime.recorder
        limits = config.ack
        self._bytes = Limit("ack requests", limits.max_bytes_waiting, "bytes", metrics=metrics)
        most = limits.max_bytes_waiting_per_client
        self._byte_shares = OwnerShares("ack bytes", dict.fromkeys(SHARING, most), metrics)
        most = limits.max_waiting_per_client
        self._entry_shares = OwnerShares("acks", dict.fromkeys(SHARING, most), metrics)

    def take(self, call: HotCall, principal: Principal) -> None:
        """Take one call; it is answered when storage has answered for every entry.

        Args:
            call: the AckMessage.
            principal: who acks.
        """
        started_s = self._clock.monotonic_s()
        pending = _PendingAck(call, self._recorder, started_s)
        try:
            self._take(call, pending, principal, started_s)
        except BaseException:
            # The caller answers; the charge is given back.
            pending.end()
            raise

    def _take(
        self, call: HotCall, pending: _PendingAck, principal: Principal, started_s: float
    ) -> None:
        try:
            caller = caller_of(call.metadata)
            self._charge(pending, caller)
            request = self._parsed(call.request)
            pending.entries = request.entries
            if not self._entry_shares.try_take(pending.owners, len(request.entries)):
                raise errors.too_many_requests()
            pending.charged_entries = len(request.entries)
            group_name, topic_name = caller.name_of(request.group), caller.name_of(request.topic)
            principal.require(ResourceKind.GROUP, group_name, Action.SUB)
            principal.require(*topic_target(topic_name), Action.SUB)
            group = _checked_group(self._view, group_name)
            topic = self._provisioner.topic(*topic_name)
        except RequestError as bad:
            pending.refuse(bad)
            self._access.tell_if_refused(bad, call, ACK)
            return
        self._unclaimed.claimed(caller.client_id)
        wait_s = time_for(call.time_left_s(), self._timeout_s, self._max_timeout_s)
        deadline_s = started_s + wait_s
        pending.begin()
        if not request.entries:
            pending.answer()
        for index, entry in enumerate(request.entries):
            try:
                raft_group, lease = self._handles.lease(entry.receipt_handle, group, topic)
            except RequestError as bad:
                pending.settled(index, bad)
            else:
                self._acker.ack(raft_group, lease, pending, index, deadline_s)

    def _charge(self, pending: _PendingAck, caller: Caller) -> None:
        """Take room for a request's bytes until it is answered.

        Raises:
            RequestError: PAYLOAD_TOO_LARGE, TOO_MANY_REQUESTS.
        """
        size_bytes = len(pending.call.request)
        if size_bytes > self._config.max_request_bytes:
            most = self._config.max_request_bytes
            raise RequestError(
                Code.PAYLOAD_TOO_LARGE,
                f"an AckMessage has at most {most} bytes (ack.max_request_bytes)",
            )
        owners = owners_of(caller.client_id, pending.call.peer)
        if not self._byte_shares.try_take(owners, size_bytes):
            raise errors.too_many_requests()
        if not self._bytes.try_take(size_bytes):
            self._byte_shares.give_back(owners, size_bytes)
            raise errors.too_many_requests()
        pending.owners = owners
        pending.charged_bytes = size_bytes
        pending.on_end = self._give_back

    def _give_back(self, pending: _PendingAck) -> None:
        self._bytes.give_back(pending.charged_bytes)
        self._byte_shares.give_back(pending.owners, pending.charged_bytes)
        self._entry_shares.give_back(pending.owners, pending.charged_entries)

    def _parsed(self, data: bytes) -> service_pb2.AckMessageRequest:
        most = self._config.max_entries
        try:
            # Smaller ones cannot hold many more entries than there may be.
            request = parse(service_pb2.AckMessageRequest, data)
        except DecodeError as error:
            raise RequestError(Code.BAD_REQUEST, str(error)) from error
        if len(request.entries) > most:
            raise RequestError(
                Code.BAD_REQUEST, f"an AckMessage has at most {most} entries (ack.max_entries)"
            )
        return request


class _PendingAck:
    """One AckMessage between arrival and answer; the `AckWaiter` of its entries.

    Attributes:
        call: what is answered.
        entries: of the request, as far as it was parsed.
        owners: whose shares are charged with it.
        charged_bytes: charge in bytes.
        charged_entries: charge in entries.
        on_end: called once, when it is answered or its client needs no answer.
    """

    __slots__ = (
        "_failures",
        "_left",
        "_recorder",
        "_started_s",
        "call",
        "charged_bytes",
        "charged_entries",
        "entries",
        "on_end",
        "owners",
    )

    def __init__(self, call: HotCall, recorder: Recorder, started_s: float) -> None:
        self.call = call
        self.entries: Sequence[service_pb2.AckMessageEntry] = ()
        self.owners: Sequence[Owner] = ()
        self.charged_bytes = self.charged_entries = 0
        self.on_end: Callable[[_PendingAck], None] | None = None
        self._recorder = recorder
        self._started_s = started_s
        self._failures: dict[int, RequestError] = {}
        self._left = 0

    def begin(self) -> None:
        """Expect one `settled` for each entry."""
        self._left = len(self.entries)

    def gone(self) -> bool:
        """See `acks.AckWaiter`."""
        return self.call.done()

    def settled(self, index: int, failure: RequestError | None) -> None:
        """See `acks.AckWaiter`."""
        if failure is not None:
            self._failures[index] = failure.without_stack()
        self._left -= 1
        if not self._left:
            self.answer()

    def failed(self) -> None:
        """See `acks.AckWaiter`."""
        # The entries that are settled later find nothing left to answer.
        self._left = 0
        try:
            self.refuse(unexpected())
        finally:
            self.end()

    def answer(self) -> None:
        """Answer with one status per entry and their common status."""
        named = [(entry.message_id, entry.receipt_handle) for entry in self.entries]
        if named and not self._failures and all(map(all, named)):
            self._complete(wire.acked(named), Code.OK)
            return
        response = service_pb2.AckMessageResponse()
        codes = []
        for index, entry in enumerate(self.entries):
            failure = self._failures.get(index)
            codes.append(Code.OK if failure is None else failure.code)
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=_OK if failure is None else errors.status_of(failure),
            )
        code = errors.fold(codes) if codes else Code.OK
        # Clients' tests look for the code's name.
        response.status.CopyFrom(errors.status_of(RequestError(code)))
        self._complete(response.SerializeToString(), code)
        if self._failures:
            self._recorder.pace.refused(self.call.peer, codes)

    def refuse(self, failure: RequestError) -> None:
        """Answer with one error for the request and each entry."""
        status = errors.status_of(failure)
        response = service_pb2.AckMessageResponse(status=status)
        for entry in self.entries:
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        self._complete(response.SerializeToString(), failure.code)
        self._recorder.pace.refused(self.call.peer, (failure.code,) * max(1, len(self.entries)))

    def _complete(self, response: bytes, code: Code) -> None:
        self.call.complete([response])
        self._recorder.answered(ACK, code, self._started_s)
        self.end()

    def end(self) -> None:
        """Give back the request's charge; a second time does nothing."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self)


_OK = errors.ok_status()


class LeaseKeeper:
    """Serves the rare calls on leases."""

    def __init__(
        self,
        provisioner: Provisioner,
        storage: StorageClient,
        *,
        unclaimed: Unclaimed,
        runtime: CallRuntime,
    ) -> None:
        self._unclaimed = unclaimed
        self._view = provisioner.view
        self._provisioner = provisioner
        self._signer = runtime.handles
        self._handles = HandleReader(provisioner.view, runtime.handles)
        self._storage = storage
        self._limits = runtime.config.limits()

    async def change_invisible(
        self,
        caller: Caller,
        request: service_pb2.ChangeInvisibleDurationRequest,
        timeout_s: float,
    ) -> str:
        """Set a new time at which a message is visible again; return the new receipt handle.

        Raises:
            RequestError: bad names, range or handle, or storage refused.
        """
        group, topic = self._group_and_topic(
            caller.name_of(request.group), caller.name_of(request.topic)
        )
        invisible_ms = milliseconds(request.invisible_duration)
        check_change_invisible(self._limits, invisible_ms)
        raft_group, lease = self._handles.lease(request.receipt_handle, group, topic)
        self._unclaimed.claimed(caller.client_id)
        response = await self._storage.call(
            raft_group,
            "ChangeInvisible",
            storage_pb2.ChangeInvisibleRequest(
                raft_group=raft_group, lease=lease, invisible_ms=invisible_ms
            ),
            storage_pb2.ChangeInvisibleResponse,
            timeout_s=timeout_s,
        )
        changed = response.lease
        return self._signer.receipt(
            ReceiptHandle(
                raft_group,
                lease.consumer_group_id,
                lease.topic_id,
                lease.queue,
                lease.offset,
                changed.lease_number,
                changed.generation,
                changed.visible_at_ms,
            )
        )

    async def forward_to_dead_letter(
        self,
        caller: Caller,
        request: service_pb2.ForwardMessageToDeadLetterQueueRequest,
        timeout_s: float,
    ) -> None:
        """Copy a leased message to its group's dead-letter topic and end the lease.

        Raises:
            RequestError: bad names or handle, or storage refused.
        """
        group, topic = self._group_and_topic(
            caller.name_of(request.group), caller.name_of(request.topic)
        )
        raft_group, lease = self._handles.lease(request.receipt_handle, group, topic)
        self._unclaimed.claimed(caller.client_id)
        row = self._view.consumer_group(*group)
        # The handle was checked against it.
        assert row is not None
        await self._storage.call(
            raft_group,
            "ForwardToDeadLetter",
            storage_pb2.ForwardToDeadLetterRequest(
                raft_group=raft_group, lease=lease, dead_letter_topic_id=row.dead_letter_topic_id
            ),
            storage_pb2.ForwardToDeadLetterResponse,
            timeout_s=timeout_s,
        )

    def _group_and_topic(self, group: Name, topic: Name) -> tuple[Name, TopicRow]:
        return _checked_group(self._view, group), self._provisioner.topic(*topic)


def _checked_group(view: MetadataView, group: Name) -> Name:
    """Return a legal consumer group's name; the handle shows whether the group exists."""
    check_not_own_consumer_group(group[1])
    if view.consumer_group(*group) is None:
        check_consumer_group(group[1])
    return group
