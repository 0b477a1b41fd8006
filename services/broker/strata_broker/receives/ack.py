"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: the ends of a lease.

All three take receipt handles that any broker gave; none needs anything this broker remembers.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker import errors
from strata_broker.clients.provision import Provisioner
from strata_broker.config import BrokerConfig
from strata_broker.observability.recorder import Recorder
from strata_broker.receives.acks import Acker
from strata_broker.receives.handles import HandleReader
from strata_broker.requests import Caller, caller_of, milliseconds
from strata_broker.storage.metadata import MetadataView, Name, TopicRow
from strata_broker.storage.storage_client import StorageClient
from strata_edge.ports import HotCall
from strata_mq.errors import Code, RequestError
from strata_mq.handle import ReceiptHandle, encode_handle
from strata_mq.names import check_consumer_group
from strata_mq.validation import check_change_invisible
from strata_runtime.clock import Clock

ACK = "AckMessage"


class Acknowledger:
    """Serves AckMessage."""

    def __init__(
        self,
        view: MetadataView,
        provisioner: Provisioner,
        acker: Acker,
        config: BrokerConfig,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._view = view
        self._provisioner = provisioner
        self._handles = HandleReader(view)
        self._acker = acker
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._clock = clock
        self._recorder = recorder

    def take(self, call: HotCall) -> None:
        """Take one call; it is answered when storage has answered for every entry."""
        started_s = self._clock.monotonic_s()
        request = service_pb2.AckMessageRequest()
        try:
            caller = caller_of(call.metadata)
            try:
                request.ParseFromString(call.request)
            except DecodeError as error:
                raise RequestError(Code.BAD_REQUEST, "not an AckMessageRequest") from error
            group = _checked_group(self._view, caller.name_of(request.group))
            topic = self._provisioner.topic(*caller.name_of(request.topic))
        except RequestError as bad:
            self._refuse(call, request, bad, started_s)
            return
        left_s = call.time_left_s()
        deadline_s = started_s + (self._timeout_s if left_s is None else left_s)
        pending = _PendingAck(call, request, self._recorder, started_s)
        if not request.entries:
            pending.answer()
        for index, entry in enumerate(request.entries):
            try:
                raft_group, lease = self._handles.lease(entry.receipt_handle, group, topic)
            except RequestError as bad:
                pending.settled(index, bad)
            else:
                self._acker.ack(raft_group, lease, pending, index, deadline_s)

    def _refuse(
        self,
        call: HotCall,
        request: service_pb2.AckMessageRequest,
        failure: RequestError,
        started_s: float,
    ) -> None:
        pending = _PendingAck(call, request, self._recorder, started_s)
        pending.refuse(failure)


class _PendingAck:
    """One AckMessage between arrival and answer; the `AckWaiter` of its entries."""

    __slots__ = ("_call", "_failures", "_left", "_recorder", "_request", "_started_s")

    def __init__(
        self,
        call: HotCall,
        request: service_pb2.AckMessageRequest,
        recorder: Recorder,
        started_s: float,
    ) -> None:
        self._call = call
        self._request = request
        self._recorder = recorder
        self._started_s = started_s
        self._failures: dict[int, RequestError] = {}
        self._left = len(request.entries)

    def settled(self, index: int, failure: RequestError | None) -> None:
        """See `acks.AckWaiter`."""
        if failure is not None:
            self._failures[index] = failure
        self._left -= 1
        if not self._left:
            self.answer()

    def answer(self) -> None:
        """Answer with one status per entry and what they fold to."""
        response = service_pb2.AckMessageResponse()
        codes = []
        for index, entry in enumerate(self._request.entries):
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
        self._complete(response, code)

    def refuse(self, failure: RequestError) -> None:
        """Answer with one error for the request and each entry."""
        status = errors.status_of(failure)
        response = service_pb2.AckMessageResponse(status=status)
        for entry in self._request.entries:
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        self._complete(response, failure.code)

    def _complete(self, response: service_pb2.AckMessageResponse, code: Code) -> None:
        self._call.complete([response.SerializeToString()])
        self._recorder.answered(ACK, code, self._started_s)


_OK = errors.ok_status()


class LeaseKeeper:
    """Serves the rare calls on leases."""

    def __init__(
        self,
        view: MetadataView,
        provisioner: Provisioner,
        storage: StorageClient,
        config: BrokerConfig,
    ) -> None:
        self._view = view
        self._provisioner = provisioner
        self._handles = HandleReader(view)
        self._storage = storage
        self._limits = config.limits()

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
        return encode_handle(
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
    """Return a legal consumer group's name; whether it exists shows at the handle."""
    if view.consumer_group(*group) is None:
        check_consumer_group(group[1])
    return group
