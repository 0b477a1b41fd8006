"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: the ends of a lease.

All three take receipt handles from any broker; none needs state of this broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import Principal, topic_target
from strata_broker.base import errors, wire
from strata_broker.base.parsing import parse
from strata_broker.base.shares import owners_of
from strata_broker.clients.provision import Provisioner
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.metadata.requests import Caller, caller_of, milliseconds, time_for
from strata_broker.receives.ack_room import AckRoom
from strata_broker.receives.gathered_acks import GatheredAcks, PlainAckReader
from strata_broker.receives.handles import HandleReader, by_raft_group, lease_ref
from strata_broker.receives.pending_ack import ACK, PendingAck
from strata_broker.receives.receive_passes import new_ack_pass, new_receipt_pass
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.storage_client.ack_lanes import Acker
from strata_broker.storage_client.storage_client import StorageClient
from strata_edge.ports import HotCall
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import (
    Code,
    RequestError,
    check_change_invisible,
    check_consumer_group,
    check_not_own_consumer_group,
)


class Acknowledger:
    """Serves AckMessage.

    The size of a request is checked before it is parsed. Requests that wait for storage are
    bounded in entries and in bytes, for all and for each client and connection.

    Attributes:
        acker: sends acks to storage.
        handles: reads receipt handles.
        plain_ack: reads requests in their usual form, see `wire.plain_ack`.
        room: bounds the requests that wait.
        recorder: counts answers.
        requests: note unexpected failures.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        acker: Acker,
        *,
        unclaimed: Unclaimed,
        runtime: CallRuntime,
    ) -> None:
        config = runtime.config
        self._unclaimed = unclaimed
        self._view = provisioner.view
        self._provisioner = provisioner
        self.handles = HandleReader(
            provisioner.view, runtime.handles, new_receipt_pass(runtime.passes)
        )
        ack_pass = new_ack_pass(runtime.passes)
        self.plain_ack: PlainAckReader = wire.plain_ack if ack_pass is None else ack_pass.read
        self.acker = acker
        self._access = runtime.access
        self._config = config.ack
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._clock = runtime.clock
        self.recorder = runtime.recorder
        self.requests = runtime.requests
        self.room = AckRoom(config.ack, runtime.metrics)
        self._gathered = GatheredAcks(self, config.ack, unclaimed)

    def gather(self, call: HotCall, principal: Principal, started_s: float) -> None:
        """Take one of several calls; `stage_gathered` must follow in the same turn.

        Args:
            call: the AckMessage.
            principal: who acks.
            started_s: when the turn began, by the monotonic clock.
        """
        if not self._gathered.take(call, principal, started_s):
            self.take(call, principal)

    def stage_gathered(self) -> Sequence[HotCall]:
        """Stage what `gather` took since; return the calls that `take` has to take one by one."""
        return self._gathered.stage()

    def take(self, call: HotCall, principal: Principal) -> None:
        """Take one call; it is answered when storage has answered for every entry.

        Args:
            call: the AckMessage.
            principal: who acks.
        """
        started_s = self._clock.monotonic_s()
        pending = PendingAck(call, self.room, self.recorder, started_s=started_s)
        try:
            self._take(call, pending, principal, started_s)
        except BaseException:
            # The caller answers; the charge is given back.
            pending.end()
            raise

    def time_for(self, call: HotCall) -> float:
        """Return how many seconds a call may take."""
        return time_for(call.time_left_s(), self._timeout_s, self._max_timeout_s)

    def admitted(
        self, request: service_pb2.AckMessageRequest, caller: Caller, principal: Principal
    ) -> tuple[Name, TopicRow]:
        """Return the consumer group and the topic of a request that its caller may make.

        Raises:
            RequestError: FORBIDDEN, or a name is illegal or unknown.
        """
        group_name, topic_name = caller.name_of(request.group), caller.name_of(request.topic)
        principal.require(ResourceKind.GROUP, group_name, Action.SUB)
        principal.require(*topic_target(topic_name), Action.SUB)
        return _checked_group(self._view, group_name), self._provisioner.topic(*topic_name)

    def _take(
        self, call: HotCall, pending: PendingAck, principal: Principal, started_s: float
    ) -> None:
        try:
            caller = caller_of(call.metadata)
            self._charge(pending, caller)
            request, texts = self._read(call.request, pending)
            if not self.room.take_entries(pending.owners, len(texts)):
                raise errors.too_many_requests()
            pending.charged_entries = len(texts)
            group, topic = self.admitted(request, caller, principal)
        except RequestError as bad:
            pending.refuse(bad)
            self._access.tell_if_refused(bad, call, ACK)
            return
        self._unclaimed.claimed(caller.client_id)
        deadline_s = started_s + self.time_for(call)
        pending.begin(len(texts))
        if not texts:
            pending.answer()
            return
        good, bad_handles = by_raft_group(self.handles.leases(texts, group, topic))
        if bad_handles:
            invalid = RequestError(Code.INVALID_RECEIPT_HANDLE)
            pending.settled(bad_handles, dict.fromkeys(bad_handles, invalid))
        for raft_group, (numbers, leases) in good.items():
            self.acker.ack(raft_group, leases, pending, numbers, deadline_s)

    def _charge(self, pending: PendingAck, caller: Caller) -> None:
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
        if not self.room.take_bytes(owners, size_bytes):
            raise errors.too_many_requests()
        pending.owners = owners
        pending.charged_bytes = size_bytes

    def _read(
        self, data: bytes, pending: PendingAck
    ) -> tuple[service_pb2.AckMessageRequest, list[str]]:
        """Return a request with its group and topic, and the handles of its entries.

        Raises:
            RequestError: BAD_REQUEST.
        """
        plain = self.plain_ack(data)
        if plain is not None and len(plain[1]) <= self._config.max_entries:
            head, texts, answer = plain
            # The pass does not look into the group and the topic.
            request = _parsed(head)
            pending.plain_answer = answer
            return request, texts
        request = _parsed(data)
        if len(request.entries) > self._config.max_entries:
            most = self._config.max_entries
            raise RequestError(
                Code.BAD_REQUEST, f"an AckMessage has at most {most} entries (ack.max_entries)"
            )
        pending.entries = request.entries
        return request, [entry.receipt_handle for entry in request.entries]


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
        handle = self._handles.read(request.receipt_handle, group, topic)
        self._unclaimed.claimed(caller.client_id)
        response = await self._storage.call(
            handle.raft_group,
            "ChangeInvisible",
            storage_pb2.ChangeInvisibleRequest(
                raft_group=handle.raft_group, lease=lease_ref(handle), invisible_ms=invisible_ms
            ),
            storage_pb2.ChangeInvisibleResponse,
            timeout_s=timeout_s,
        )
        changed = response.lease
        return self._signer.receipt(
            handle._replace(
                lease_number=changed.lease_number,
                generation=changed.generation,
                visible_at_ms=changed.visible_at_ms,
                auto_renewed=False,
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
        handle = self._handles.read(request.receipt_handle, group, topic)
        self._unclaimed.claimed(caller.client_id)
        row = self._view.consumer_group(*group)
        # The handle was checked against it.
        assert row is not None
        await self._storage.call(
            handle.raft_group,
            "ForwardToDeadLetter",
            storage_pb2.ForwardToDeadLetterRequest(
                raft_group=handle.raft_group,
                lease=lease_ref(handle),
                dead_letter_topic_id=row.dead_letter_topic_id,
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


def _parsed(data: bytes) -> service_pb2.AckMessageRequest:
    """Return a request.

    Raises:
        RequestError: BAD_REQUEST.
    """
    try:
        # Smaller ones cannot hold many more entries than there may be.
        return parse(service_pb2.AckMessageRequest, data)
    except DecodeError as error:
        raise RequestError(Code.BAD_REQUEST, str(error)) from error
