"""Plain sends that arrive in one turn of the event loop, staged together.

Most requests have few messages of a NORMAL topic, and many of them arrive together. Gathered sends
of a topic that go to one raft group are one entry of its batch: the topic is looked up once, the
budget is charged once, one waiter is told. A gathered send is a `PendingSend` to which nothing
special happens. When something does (a limit is reached, a queue moved, storage refused), each send
becomes a `PendingSend` of its own. `Sender` takes all other sends one by one.

Nothing is gathered longer than a turn, so the metadata cannot change meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.metadata.quotas import Quotas
from strata_broker.sends.outgoing import MessagePreparer, ParsedSend
from strata_broker.sends.pending_send import SEND, PendingSend, held_bytes
from strata_broker.sends.send_owner import SendOwner
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage, PartKey
from strata_mq.requests import RequestError
from strata_mq.slots import preferred_group
from strata_runtime.tasks import RequestTasks

_TELL = "tell a sender"
# An entry that is settled in parts keeps the bytes of all of its messages until the last part.
_MAX_ENTRY_BYTES = 256 * 1024
# Sends whose deadlines are so close have one: the earliest.
_DEADLINES_PER_S = 100


class GatheringOwner(SendOwner, Protocol):
    """The part of `Sender` that gathered sends need."""

    def stage_alone(self, pending: PendingSend) -> None:
        """Stage or refuse a send that was gathered."""


class GatheredSends:
    """Gathers the sends of a turn. Used on the event loop only.

    Args:
        sender: stages what is not gathered, and owns what a send needs.
        view: the metadata.
        preparer: checks messages.
        quotas: sends are gathered only while no quota limits them.
        earlier: a send with a message that has to be looked for is staged by itself.
        requests: note unexpected failures.
    """

    def __init__(
        self,
        sender: GatheringOwner,
        view: MetadataView,
        preparer: MessagePreparer,
        *,
        quotas: Quotas,
        earlier: EarlierSends,
        requests: RequestTasks,
    ) -> None:
        self._sender = sender
        self._view = view
        self._preparer = preparer
        self._quotas = quotas
        self._earlier = earlier
        self._requests = requests
        self._topics: dict[Name, _TopicSends | None] = {}

    def take(self, call: HotCall, parsed: ParsedSend, started_s: float, deadline_s: float) -> bool:
        """Take a request whose sender may make it; False: it has to be staged by itself.

        Args:
            call: the SendMessage.
            parsed: its request.
            started_s: when the turn began.
            deadline_s: when its client no longer waits.
        """
        name = parsed.topic
        if name in self._topics:
            sends = self._topics[name]
        else:
            sends = self._topics[name] = self._sends_of(name)
        if sends is None:
            return False
        sends.taken.append(_Taken(call, parsed, started_s, deadline_s))
        return True

    def stage(self) -> None:
        """Prepare what was gathered in one pass, and stage it."""
        topics, self._topics = self._topics, {}
        gathered = [sends for sends in topics.values() if sends is not None]
        taken = [(sends, one) for sends in gathered for one in sends.taken]
        for (sends, one), messages in zip(taken, self._prepared(taken), strict=True):
            self._add_or_refuse(sends, one, messages)
        for sends in gathered:
            for entry in sends.entries.values():
                self._stage(entry)

    def _prepared(
        self, taken: Sequence[tuple[_TopicSends, _Taken]]
    ) -> Sequence[Sequence[OutgoingMessage]]:
        """Return the messages of every send; nothing for those that are prepared alone."""
        try:
            return self._preparer.prepare_each(
                [one.parsed for _, one in taken], [sends.topic for sends, _ in taken]
            )
        except Exception as failure:  # noqa: BLE001 - each shows by itself whether it is the one
            self._requests.failed(SEND, failure)
            return [()] * len(taken)

    def _add_or_refuse(
        self, sends: _TopicSends, taken: _Taken, prepared: Sequence[OutgoingMessage]
    ) -> None:
        """Put a send into its entry; a failure ends this send, not those beside it."""
        try:
            ready = prepared or self._preparer.prepare_all(taken.parsed, sends.topic)
            self._add(sends, taken, ready)
        except RequestError as bad:
            self._refuse(taken, bad)
        except Exception as failure:  # noqa: BLE001 - as said above
            self._requests.failed(SEND, failure)
            self._refuse(taken, unexpected())

    def _refuse(self, taken: _Taken, failure: RequestError) -> None:
        self._sender.refuse(taken.call, len(taken.parsed.message_ids), failure, taken.started_s)

    def _add(self, sends: _TopicSends, taken: _Taken, messages: Sequence[OutgoingMessage]) -> None:
        call, parsed, started_s, deadline_s = taken
        if sends.may_suspect and self._earlier.suspects(sends.topic, messages):
            self._sender.stage_alone(
                PendingSend(
                    self._sender,
                    call,
                    parsed.message_ids,
                    outgoing=messages,
                    topic=sends.topic,
                    started_s=started_s,
                    deadline_s=deadline_s,
                )
            )
            return
        message_id = messages[0].message_id
        raft_group = preferred_group(message_id, sends.owners)
        queue = self._view.queue_at(sends.topic, raft_group, message_id)
        key = raft_group, queue, int(deadline_s * _DEADLINES_PER_S)
        entry = sends.entries.get(key)
        if entry is None or entry.request_bytes > _MAX_ENTRY_BYTES:
            if entry is not None:
                self._stage(entry)
            entry = _Entry(
                self._sender,
                sends.topic,
                raft_group,
                queue,
                started_s=started_s,
                deadline_s=deadline_s,
            )
            sends.entries[key] = entry
        entry.add(call, parsed.message_ids, messages, deadline_s)

    def _stage(self, entry: _Entry) -> None:
        if not entry.charge():
            # There may be room for some of them.
            for pending in entry.alone():
                self._sender.stage_alone(pending)
            return
        try:
            entry.stage()
        except Exception as failure:  # noqa: BLE001 - it ends these sends, not those beside them
            self._requests.failed(SEND, failure)
            entry.refused(range(len(entry)), unexpected())

    def _sends_of(self, name: Name) -> _TopicSends | None:
        """Return what sends to a topic have in common; None: they are not gathered."""
        topic = self._view.topic(*name)
        if topic is None or topic.is_table or topic.topic_type != meta_pb2.TOPIC_TYPE_NORMAL:
            return None
        owners = () if self._quotas.limit_sends else self._view.owners(topic)
        if not owners:
            return None
        return _TopicSends(topic, owners, self._earlier.may_suspect(topic))


class _Taken(NamedTuple):
    """A send that was gathered, before its messages are prepared."""

    call: HotCall
    parsed: ParsedSend
    started_s: float
    deadline_s: float


class _TopicSends:
    """Sends to one topic: the owners of its queues, and entries by destination and deadline.

    `may_suspect`: some of its messages may have to be looked for before they are sent.
    """

    __slots__ = ("entries", "may_suspect", "owners", "taken", "topic")

    def __init__(self, topic: TopicRow, owners: tuple[int, ...], may_suspect: bool) -> None:
        self.topic = topic
        self.owners = owners
        self.may_suspect = may_suspect
        self.taken: list[_Taken] = []
        # By raft group, queue (LEADER_CHOOSES: any), and hundredths of a second.
        self.entries: dict[tuple[int, int, int], _Entry] = {}


class _Entry:
    """Sends that are staged together; the `Waiter` of their messages.

    As long as they are settled together, it answers them; else each goes on by itself.
    """

    __slots__ = (
        "_alone",
        "_calls",
        "_deadline_s",
        "_firsts",
        "_held_bytes",
        "_message_ids",
        "_messages",
        "_queue",
        "_raft_group",
        "_sender",
        "_started_s",
        "_topic",
        "request_bytes",
    )

    def __init__(
        self,
        sender: SendOwner,
        topic: TopicRow,
        raft_group: int,
        queue: int,
        *,
        started_s: float,
        deadline_s: float,
    ) -> None:
        self._sender = sender
        self._topic = topic
        self._raft_group = raft_group
        self._queue = queue
        self._started_s = started_s
        self._deadline_s = deadline_s
        # Per send: its call, the ids of its messages, and which message is its first one.
        self._calls: list[HotCall] = []
        self._message_ids: list[Sequence[str]] = []
        self._firsts: list[int] = []
        self._messages: list[OutgoingMessage] = []
        # Sends that go on by themselves, by number.
        self._alone: dict[int, PendingSend] = {}
        self.request_bytes = 0
        # The budget is charged these.
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(
        self,
        call: HotCall,
        message_ids: Sequence[str],
        messages: Sequence[OutgoingMessage],
        deadline_s: float,
    ) -> None:
        """Add a send."""
        self._calls.append(call)
        self._message_ids.append(message_ids)
        self._firsts.append(len(self._messages))
        self._messages += messages
        self.request_bytes += len(call.request)
        if deadline_s < self._deadline_s:
            self._deadline_s = deadline_s

    def charge(self) -> bool:
        """Charge the budget; False: there is no room for all, or each has a share to keep to."""
        if self._sender.budget.counts_shares:
            return False
        self._held_bytes = held_bytes(self.request_bytes, self._messages)
        namespace = self._topic.namespace
        return self._sender.budget.try_take(namespace, self._raft_group, self._held_bytes)

    def alone(self) -> list[PendingSend]:
        """Return every send by itself; they are not charged yet."""
        return [self._pending(number) for number in range(len(self._calls))]

    def stage(self) -> None:
        """Put all messages into the raft group's batch."""
        topic = self._topic
        key = PartKey(topic.topic_id, self._queue, topic.slot_base, topic.queue_count)
        self._sender.appender.stage(
            self._raft_group, key, self._messages, range(len(self)), self, self._deadline_s
        )

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """See `append_batches.Waiter`."""
        if len(indexes) == len(self):
            self._answer(offsets)
        else:
            self._tell(indexes, lambda send, own, part: send.stored(own, offsets[part]))

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """See `append_batches.Waiter`."""
        self._tell(indexes, lambda send, own, part: send.pending(own, raft_group, places[part]))

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """See `append_batches.Waiter`."""
        self._tell(indexes, lambda send, own, _: send.refused(own, failure))

    def failed(self) -> None:
        """See `append_batches.Waiter`."""
        for number, call in enumerate(self._calls):
            if not call.done():
                self._charged(number).failed()

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """See `append_batches.Waiter`."""
        self._tell(indexes, lambda send, own, _: send.moved(own, raft_group, key, result))

    def _answer(self, offsets: Sequence[int]) -> None:
        """Answer all sends: everything is stored."""
        sender = self._sender
        answered, left_bytes = [], self._held_bytes
        numbered = enumerate(zip(self._calls, self._message_ids, self._firsts, strict=True))
        for number, (call, message_ids, first) in numbered:
            count = len(message_ids)
            try:
                call.complete((sender.sent(message_ids, offsets[first : first + count]),))
                answered.append((count, len(call.request)))
            except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
                sender.requests.failed(_TELL, failure)
                alone = self._charged(number)
                left_bytes -= alone.held_bytes
                alone.refused(range(count), unexpected())
        sender.budget.give_back(self._topic.namespace, self._raft_group, left_bytes)
        message_type = self._messages[0].message_type
        sender.recorder.sent_together(self._topic, message_type, answered, self._started_s)

    def _tell(
        self, indexes: Sequence[int], tell: Callable[[PendingSend, Sequence[int], slice], None]
    ) -> None:
        """Tell every send its part of a result: by its own numbers, and where they are in it."""
        at = 0
        while at < len(indexes):
            number = bisect_right(self._firsts, indexes[at]) - 1
            first = self._firsts[number]
            end = bisect_left(indexes, first + len(self._message_ids[number]), at)
            send, own = self._charged(number), [index - first for index in indexes[at:end]]
            try:
                tell(send, own, slice(at, end))
            except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
                self._sender.requests.failed(_TELL, failure)
                with passed_over(self._sender.requests, _TELL):
                    send.failed()
            at = end

    def _charged(self, number: int) -> PendingSend:
        """Return a send that goes on by itself, with its part of what the budget was charged."""
        send = self._pending(number)
        send.charged_raft_group = self._raft_group
        return send

    def _pending(self, number: int) -> PendingSend:
        send = self._alone.get(number)
        if send is None:
            first, message_ids = self._firsts[number], self._message_ids[number]
            send = self._alone[number] = PendingSend(
                self._sender,
                self._calls[number],
                message_ids,
                outgoing=self._messages[first : first + len(message_ids)],
                topic=self._topic,
                started_s=self._started_s,
                deadline_s=self._deadline_s,
            )
        return send
