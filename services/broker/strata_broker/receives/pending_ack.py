"""One AckMessage between its arrival and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apache.rocketmq.v2 import service_pb2
from strata_broker.base import errors, wire
from strata_broker.base.failures import unexpected
from strata_broker.base.shares import Owner
from strata_broker.metadata.recorder import Recorder
from strata_broker.receives.ack_room import AckRoom
from strata_edge.ports import HotCall
from strata_mq.requests import Code, RequestError

ACK = "AckMessage"


class PendingAck:
    """The `AckWaiter` of the entries of one AckMessage.

    Attributes:
        call: what is answered.
        entries: of the request, as far as it was parsed.
        plain_answer: the answer for the case that all is well, of a request that was read without
            being parsed (`wire.plain_ack`).
        owners: whose shares are charged with it.
        charged_bytes: charge in bytes.
        charged_entries: charge in entries.

    Args:
        room: gets the charge back when it is answered or its client needs no answer.
        recorder: counts the answer.
        started_s: when the call came (monotonic seconds).
    """

    __slots__ = (
        "_failures",
        "_left",
        "_recorder",
        "_room",
        "_started_s",
        "call",
        "charged_bytes",
        "charged_entries",
        "entries",
        "owners",
        "plain_answer",
    )

    def __init__(
        self, call: HotCall, room: AckRoom, recorder: Recorder, *, started_s: float
    ) -> None:
        self.call = call
        self.entries: Sequence[service_pb2.AckMessageEntry] = ()
        self.plain_answer = b""
        self.owners: Sequence[Owner] = ()
        self.charged_bytes = self.charged_entries = 0
        self._room = room
        self._recorder = recorder
        self._started_s = started_s
        self._failures: dict[int, RequestError] = {}
        self._left = 0

    def begin(self, entries: int) -> None:
        """Expect one result for each entry."""
        self._left = entries

    def gone(self, number: int) -> bool:
        """See `ack_lanes.AckWaiter`."""
        return self.call.done()

    def settled(self, numbers: Sequence[int], failures: Mapping[int, RequestError]) -> None:
        """See `ack_lanes.AckWaiter`."""
        for number, failure in failures.items():
            self._failures[number] = failure.without_stack()
        self._left -= len(numbers)
        if not self._left:
            self.answer()

    def failed(self) -> None:
        """See `ack_lanes.AckWaiter`."""
        # The entries that are settled later find nothing left to answer.
        self._left = 0
        try:
            self.refuse(unexpected())
        finally:
            self.end()

    def answer(self) -> None:
        """Answer with one status per entry and their common status."""
        if self.plain_answer and not self._failures:
            self._complete(self.plain_answer, Code.OK)
            return
        self._parse()
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
        self._parse()
        status = errors.status_of(failure)
        response = service_pb2.AckMessageResponse(status=status)
        for entry in self.entries:
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        self._complete(response.SerializeToString(), failure.code)
        self._recorder.pace.refused(self.call.peer, (failure.code,) * max(1, len(self.entries)))

    def _parse(self) -> None:
        """Parse a request that was only read, because its answer is no plain one."""
        if self.plain_answer:
            self.plain_answer = b""
            self.entries = service_pb2.AckMessageRequest.FromString(self.call.request).entries

    def _complete(self, response: bytes, code: Code) -> None:
        self.call.complete([response])
        self._recorder.answered(ACK, code, self._started_s)
        self.end()

    def end(self) -> None:
        """Give back the request's charge; a second time does nothing."""
        size_bytes, entries = self.charged_bytes, self.charged_entries
        self.charged_bytes = self.charged_entries = 0
        if size_bytes:
            self._room.give_back(self.owners, size_bytes, entries)


_OK = errors.ok_status()
