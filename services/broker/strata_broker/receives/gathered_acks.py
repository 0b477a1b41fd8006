"""Plain acks that arrive in one turn of the event loop, sent to storage together.

Most clients acknowledge each message by a call of its own, and many of these calls arrive together.
Gathered acks of a connection have their consumer group and topic in common: rights, names and room
are looked at once, their handles are read in one pass, and those of one raft group are one entry of
its lane with one waiter. A gathered ack is a `PendingAck` to which nothing special happens. When
something does (a bad handle, no room, storage refuses), each one becomes a `PendingAck` of its own.

Nothing is gathered longer than a turn, so the metadata cannot change meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import service_pb2
from strata_broker.access.principals import Principal
from strata_broker.base.failures import passed_over
from strata_broker.base.parsing import parse
from strata_broker.base.receive_config import AckSection
from strata_broker.base.shares import owners_of
from strata_broker.metadata.metadata import Name, TopicRow
from strata_broker.metadata.recorder import Recorder
from strata_broker.metadata.requests import Caller, caller_of
from strata_broker.receives.ack_room import AckRoom
from strata_broker.receives.handles import HandleReader, NamedLease
from strata_broker.receives.pending_ack import ACK, PendingAck
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.storage_client.ack_lanes import Acker
from strata_edge.ports import HotCall
from strata_mq.requests import Code, RequestError
from strata_runtime.tasks import RequestTasks

_TELL = "tell who acks"
# A larger request has many entries: what it has in common with others is little of its time.
_MAX_REQUEST_BYTES = 1_024
# Acks whose deadlines are so close have one: the earliest.
_DEADLINES_PER_S = 100

PlainAckReader = Callable[[bytes], tuple[bytes, list[str], bytes] | None]
"""`wire.plain_ack`, or the native pass that does the same."""

_Key = tuple[bytes, Caller, str, Principal, int]
"""Bytes of group and topic, caller, connection, rights, deadline: gathered acks have the same."""


class AckOwner(Protocol):
    """The part of `Acknowledger` that gathered acks need.

    Attributes:
        acker: sends acks to storage.
        handles: reads receipt handles.
        plain_ack: reads requests in their usual form.
        room: bounds the requests that wait.
        recorder: counts answers.
        requests: note unexpected failures.
    """

    acker: Acker
    handles: HandleReader
    plain_ack: PlainAckReader
    room: AckRoom
    recorder: Recorder
    requests: RequestTasks

    def time_for(self, call: HotCall) -> float:
        """Return how many seconds a call may take."""

    def admitted(
        self, request: service_pb2.AckMessageRequest, caller: Caller, principal: Principal
    ) -> tuple[Name, TopicRow]:
        """Return the consumer group and the topic of a request that its caller may make.

        Raises:
            RequestError: FORBIDDEN, or a name is illegal or unknown.
        """


class GatheredAcks:
    """Gathers the acks of a turn. Used on the event loop only.

    Args:
        acknowledger: takes what is not gathered, and owns what an ack needs.
        config: limits of a request.
        unclaimed: is told of clients that ack.
    """

    def __init__(self, acknowledger: AckOwner, config: AckSection, unclaimed: Unclaimed) -> None:
        self._acknowledger = acknowledger
        self._unclaimed = unclaimed
        self._max_request_bytes = min(_MAX_REQUEST_BYTES, config.max_request_bytes)
        self._max_entries = config.max_entries
        self._turn: dict[_Key, _TurnAcks | None] = {}

    def take(self, call: HotCall, principal: Principal, started_s: float) -> bool:
        """Take a request whose caller may make it; False: it has to be taken by itself.

        Args:
            call: the AckMessage.
            principal: who acks.
            started_s: when the turn began.
        """
        if len(call.request) > self._max_request_bytes:
            return False
        plain = self._acknowledger.plain_ack(call.request)
        if plain is None or len(plain[1]) > self._max_entries:
            return False
        head, handles, answer = plain
        deadline_s = started_s + self._acknowledger.time_for(call)
        try:
            caller = caller_of(call.metadata)
        except RequestError:
            return False
        key = head, caller, call.peer, principal, int(deadline_s * _DEADLINES_PER_S)
        if key in self._turn:
            acks = self._turn[key]
        else:
            acks = self._turn[key] = self._acks_of(key, started_s, deadline_s)
        if acks is None:
            return False
        acks.calls.append(call)
        acks.counts.append(len(handles))
        acks.answers.append(answer)
        acks.handles += handles
        acks.deadline_s = min(acks.deadline_s, deadline_s)
        return True

    def stage(self) -> list[HotCall]:
        """Stage what was gathered; return the calls that have to be taken one by one."""
        turn, self._turn = self._turn, {}
        alone: list[HotCall] = []
        for acks in turn.values():
            if acks is not None:
                alone += self._stage(acks)
        return alone

    def _stage(self, acks: _TurnAcks) -> list[HotCall]:
        acknowledger = self._acknowledger
        try:
            leases = acknowledger.handles.leases(acks.handles, acks.group, acks.topic)
            entries, alone = _entries_of(acks, leases, acknowledger)
        except Exception as failure:  # noqa: BLE001 - each of them meets it by itself, or does not
            acknowledger.requests.failed(ACK, failure)
            return acks.calls
        for raft_group, entry in entries.items():
            try:
                if not entry.charge():
                    # There may be room for some of them.
                    alone += entry.calls
                    continue
                self._unclaimed.claimed(acks.caller.client_id)
                numbers = range(len(entry.leases))
                acknowledger.acker.ack(raft_group, entry.leases, entry, numbers, acks.deadline_s)
            except Exception as failure:  # noqa: BLE001 - it ends these acks, not those beside them
                acknowledger.requests.failed(ACK, failure)
                entry.failed()
        return alone

    def _acks_of(self, key: _Key, started_s: float, deadline_s: float) -> _TurnAcks | None:
        """Return what acks have in common; None: they are not gathered."""
        head, caller, peer, principal, _ = key
        try:
            request = parse(service_pb2.AckMessageRequest, head)
            group, topic = self._acknowledger.admitted(request, caller, principal)
        except (DecodeError, RequestError):
            return None
        return _TurnAcks(
            caller, peer, group=group, topic=topic, started_s=started_s, deadline_s=deadline_s
        )


class _TurnAcks:
    """Acks of a turn that have group, topic and connection in common."""

    __slots__ = (
        "answers",
        "caller",
        "calls",
        "counts",
        "deadline_s",
        "group",
        "handles",
        "peer",
        "started_s",
        "topic",
    )

    def __init__(
        self,
        caller: Caller,
        peer: str,
        *,
        group: Name,
        topic: TopicRow,
        started_s: float,
        deadline_s: float,
    ) -> None:
        self.caller = caller
        self.peer = peer
        self.group = group
        self.topic = topic
        self.started_s = started_s
        self.deadline_s = deadline_s
        self.calls: list[HotCall] = []
        # Per call: its answer if all is well, and how many of the handles it has.
        self.answers: list[bytes] = []
        self.counts: list[int] = []
        self.handles: list[str] = []


def _entries_of(
    acks: _TurnAcks, leases: Sequence[NamedLease | None], acknowledger: AckOwner
) -> tuple[dict[int, _Entry], list[HotCall]]:
    """Return (acks by raft group, the calls with a bad handle or with several raft groups)."""
    entries: dict[int, _Entry] = {}
    alone = []
    first = 0
    for call, count, answer in zip(acks.calls, acks.counts, acks.answers, strict=True):
        own = leases[first : first + count]
        first += count
        raft_group = _raft_group_of(own)
        if raft_group is None:
            alone.append(call)
            continue
        entry = entries.get(raft_group)
        if entry is None:
            entry = entries[raft_group] = _Entry(acknowledger, acks)
        entry.add(call, answer, own)
    return entries, alone


def _raft_group_of(leases: Sequence[NamedLease | None]) -> int | None:
    """Return the raft group of leases; None: a handle is bad, or they are of several."""
    first = leases[0]
    if first is None:
        return None
    for lease in leases[1:]:
        if lease is None or lease[0] != first[0]:
            return None
    return first[0]


class _Entry:
    """Acks that are sent together; the `AckWaiter` of their handles.

    As long as they are settled together, it answers them; else each goes on by itself.
    """

    __slots__ = (
        "_acknowledger",
        "_alone",
        "_answers",
        "_charged_bytes",
        "_firsts",
        "_owners",
        "_started_s",
        "calls",
        "leases",
    )

    def __init__(self, acknowledger: AckOwner, acks: _TurnAcks) -> None:
        self._acknowledger = acknowledger
        self._owners = owners_of(acks.caller.client_id, acks.peer)
        self._started_s = acks.started_s
        # Per call: its answer if all is well, and which lease is its first one.
        self.calls: list[HotCall] = []
        self._answers: list[bytes] = []
        self._firsts: list[int] = []
        self.leases: list[bytes] = []
        # The charge of calls that are not answered and do not go on by themselves.
        self._charged_bytes = 0
        # Calls that go on by themselves, by number.
        self._alone: dict[int, PendingAck] = {}

    def add(self, call: HotCall, answer: bytes, leases: Sequence[NamedLease | None]) -> None:
        """Add a call."""
        self.calls.append(call)
        self._answers.append(answer)
        self._firsts.append(len(self.leases))
        self.leases += [lease[1] for lease in leases if lease is not None]

    def charge(self) -> bool:
        """Take room for all; False: there is none, and nothing is charged."""
        size_bytes = sum([len(call.request) for call in self.calls])
        room = self._acknowledger.room
        if not room.take_bytes(self._owners, size_bytes):
            return False
        if not room.take_entries(self._owners, len(self.leases)):
            room.give_back(self._owners, size_bytes, 0)
            return False
        self._charged_bytes = size_bytes
        return True

    def settled(self, numbers: Sequence[int], failures: Mapping[int, RequestError]) -> None:
        """See `ack_lanes.AckWaiter`."""
        if not failures and len(numbers) == len(self.leases):
            self._answer()
            return
        own: dict[int, list[int]] = {}
        for number in numbers:
            own.setdefault(self._call_of(number), []).append(number)
        for at, own_numbers in own.items():
            first = self._firsts[at]
            bad = {number - first: failures[number] for number in own_numbers if number in failures}
            pending = self._pending(at)
            try:
                pending.settled([number - first for number in own_numbers], bad)
            except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
                self._acknowledger.requests.failed(_TELL, failure)
                with passed_over(self._acknowledger.requests, _TELL):
                    pending.failed()

    def failed(self) -> None:
        """See `ack_lanes.AckWaiter`."""
        for at, call in enumerate(self.calls):
            if at in self._alone or self._charged_bytes or not call.done():
                self._pending(at).failed()

    def gone(self, number: int) -> bool:
        """See `ack_lanes.AckWaiter`."""
        return self.calls[self._call_of(number)].done()

    def _answer(self) -> None:
        """Answer all calls: every lease is gone."""
        acknowledger, size_bytes = self._acknowledger, self._charged_bytes
        self._charged_bytes = 0
        acknowledger.room.give_back(self._owners, size_bytes, len(self.leases))
        answered = 0
        for at, (call, answer) in enumerate(zip(self.calls, self._answers, strict=True)):
            try:
                call.complete((answer,))
                answered += 1
            except Exception as failure:  # noqa: BLE001 - it ends this call, not those beside it
                acknowledger.requests.failed(_TELL, failure)
                with passed_over(acknowledger.requests, _TELL):
                    self._pending(at).failed()
        acknowledger.recorder.answered(ACK, Code.OK, self._started_s, answered)

    def _call_of(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1

    def _pending(self, at: int) -> PendingAck:
        """Return a call that goes on by itself, with its part of what is charged."""
        pending = self._alone.get(at)
        if pending is None:
            call, acknowledger = self.calls[at], self._acknowledger
            pending = self._alone[at] = PendingAck(
                call, acknowledger.room, acknowledger.recorder, started_s=self._started_s
            )
            pending.entries = service_pb2.AckMessageRequest.FromString(call.request).entries
            pending.begin(len(pending.entries))
            if self._charged_bytes:
                pending.owners = self._owners
                pending.charged_bytes = len(call.request)
                pending.charged_entries = len(pending.entries)
                self._charged_bytes -= len(call.request)
        return pending
