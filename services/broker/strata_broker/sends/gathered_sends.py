"""Sends that arrive in one turn of the event loop, staged together.

Most requests have few messages without a message group, and many of them arrive together. Gathered
sends of a topic that go to one raft group are one entry of its batch (`gathered_entry`): the topic
is looked up once, the budget is charged once, one waiter is told. `Sender` takes all other sends
one by one.

Nothing is gathered longer than a turn, so the metadata cannot change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from strata.meta.v1 import meta_pb2
from strata_broker.base.failures import unexpected
from strata_broker.clients.producers import Producers
from strata_broker.metadata.metadata import LEADER_CHOOSES, MetadataView, Name, TopicRow
from strata_broker.metadata.quotas import Quotas
from strata_broker.sends.alike_sends import AlikeSend
from strata_broker.sends.gathered_entry import GatheredEntry
from strata_broker.sends.outgoing import MessagePreparer, ParsedSend, part_kind
from strata_broker.sends.pending_send import SEND, PendingSend
from strata_broker.sends.searches import Destination, ended_by_failure
from strata_broker.sends.send_owner import SendOwner
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage, PartKind
from strata_mq.requests import MessageType, RequestError
from strata_mq.slots import preferred_group
from strata_runtime.tasks import RequestTasks

# An entry that is settled in parts keeps the bytes of all of its messages until the last part.
_MAX_ENTRY_BYTES = 256 * 1024
# Types of topics whose sends are gathered, and the type that most of their messages have.
_MESSAGE_TYPES: dict[int, MessageType] = {
    meta_pb2.TOPIC_TYPE_NORMAL: MessageType.NORMAL,
    meta_pb2.TOPIC_TYPE_FIFO: MessageType.FIFO,
    meta_pb2.TOPIC_TYPE_DELAY: MessageType.DELAY,
    meta_pb2.TOPIC_TYPE_TRANSACTION: MessageType.TRANSACTION,
}
# Alike sends of these have one message each: several half messages are refused, and messages of
# several message groups go to several queues.
_SINGLE_TYPES = frozenset({MessageType.FIFO, MessageType.TRANSACTION})
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
        producers: are told who sends half messages.
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
        producers: Producers,
        quotas: Quotas,
        earlier: EarlierSends,
        requests: RequestTasks,
    ) -> None:
        self._sender = sender
        self._view = view
        self._preparer = preparer
        self._producers = producers
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
        sends = self._sends_to(parsed.topic)
        if sends is None:
            return False
        sends.taken.append(_Taken(call, parsed, started_s, deadline_s))
        return True

    def take_alike(self, alike: AlikeSend) -> bool:
        """Take requests whose sender may make them; False: they are to be taken by themselves.

        Raises:
            RequestError: likewise.
        """
        sends = self._sends_to(alike.topic)
        if sends is None or _MESSAGE_TYPES[sends.topic.topic_type] != alike.message_type:
            return False
        if alike.message_type in _SINGLE_TYPES and any([len(ids) > 1 for ids in alike.message_ids]):
            return False
        if alike.message_type == MessageType.TRANSACTION:
            name, client_id = alike.topic, alike.client_id
            self._producers.sent_half(client_id, name, peer=alike.peer, user=alike.user)
        if sends.may_suspect or self._view.moved_in(sends.topic):
            # Each message has its own place then, or one to be looked for.
            for number, call in enumerate(alike.calls):
                parsed = alike.parsed(number)
                sends.taken.append(_Taken(call, parsed, alike.started_s, alike.deadline_s))
        else:
            sends.alike.append(alike)
        return True

    def stage(self) -> None:
        """Prepare what was gathered in one pass, and stage it."""
        topics, self._topics = self._topics, {}
        gathered = [sends for sends in topics.values() if sends is not None]
        self._add_alike(gathered)
        taken = [(sends, one) for sends in gathered for one in sends.taken]
        for (sends, one), messages in zip(taken, self._prepared(taken), strict=True):
            self._add_or_refuse(sends, one, messages)
        for sends in gathered:
            self._stage_entries(sends)

    def _add_alike(self, gathered: Sequence[_TopicSends]) -> None:
        """Prepare the sends that are alike in one pass, and put them into entries."""
        alike = [(sends, one) for sends in gathered for one in sends.alike]
        if not alike:
            return
        requests = [call.request for _, one in alike for call in one.calls]
        client_ids = [one.client_id for _, one in alike for _ in one.calls]
        try:
            prepared = self._preparer.store_each(requests, client_ids)
        except Exception as failure:  # noqa: BLE001 - each shows by itself whether it is the one
            self._requests.failed(SEND, failure)
            for sends, one in alike:
                self._add_each(sends, one)
            return
        at = 0
        for sends, one in alike:
            messages = prepared[at : at + len(one.calls)]
            at += len(one.calls)
            try:
                if one.message_type != MessageType.NORMAL:
                    messages = [self._preparer.taken(own, sends.topic) for own in messages]
                numbers_at = self._by_destination(sends, messages) if all(messages) else None
            except Exception as failure:  # noqa: BLE001 - as said above
                self._requests.failed(SEND, failure)
                numbers_at = None
            if numbers_at is None:
                self._add_each(sends, one)
                continue
            for destination, numbers in numbers_at.items():
                self._extend(sends, one, destination, numbers, messages)

    def _by_destination(
        self, sends: _TopicSends, messages: Sequence[Sequence[OutgoingMessage]]
    ) -> Mapping[Destination, Sequence[int]] | None:
        """Return where the messages of sends go -> the numbers of those sends, in order.

        None: some of the sends are to be staged or refused by themselves.
        """
        if not sends.is_ordered:
            return {
                Destination(raft_group, LEADER_CHOOSES, sends.topic.queue_count): numbers
                for raft_group, numbers in _by_raft_group(sends.owners, messages).items()
            }
        own = [message for (message,) in messages]
        try:
            return dict(self._sender.destinations(sends.topic, own, range(len(own))))
        except RequestError:
            return None

    def _add_each(self, sends: _TopicSends, alike: AlikeSend) -> None:
        """Prepare sends that are alike one by one."""
        for number, call in enumerate(alike.calls):
            taken = _Taken(call, alike.parsed(number), alike.started_s, alike.deadline_s)
            self._add_or_refuse(sends, taken, ())

    def _extend(
        self,
        sends: _TopicSends,
        alike: AlikeSend,
        destination: Destination,
        numbers: Sequence[int],
        messages: Sequence[Sequence[OutgoingMessage]],
    ) -> None:
        """Put some of the sends that are alike into entries of a destination."""
        sizes_bytes, started_s, deadline_s = alike.sizes_bytes, alike.started_s, alike.deadline_s
        kind = part_kind(messages[0][0])
        for run in _runs_with_room(numbers, sizes_bytes):
            entry = self._entry(sends, destination, kind, started_s, deadline_s)
            entry.add_all(
                [alike.calls[number] for number in run],
                [alike.message_ids[number] for number in run],
                [messages[number] for number in run],
                request_bytes=sum([sizes_bytes[number] for number in run]),
                deadline_s=deadline_s,
            )

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
        topic = sends.topic
        destination, kind = self._destination(sends, messages), part_kind(messages[0])
        if kind is PartKind.HALF:
            self._producers.sent_half(
                parsed.client_id, parsed.topic, peer=call.peer, user=parsed.user
            )
        if destination is None or (sends.may_suspect and self._earlier.suspects(topic, messages)):
            if sends.is_ordered:
                self._stage_entries(sends)
            self._sender.stage_alone(
                PendingSend(
                    self._sender,
                    call,
                    parsed.message_ids,
                    outgoing=messages,
                    topic=topic,
                    started_s=started_s,
                    deadline_s=deadline_s,
                )
            )
            return
        entry = self._entry(sends, destination, kind, started_s, deadline_s)
        entry.add(call, parsed.message_ids, messages, deadline_s)

    def _entry(
        self,
        sends: _TopicSends,
        destination: Destination,
        kind: PartKind,
        started_s: float,
        deadline_s: float,
    ) -> GatheredEntry:
        """Return the entry for messages, with room for more; a full one is staged."""
        deadline_mark = int(deadline_s * _DEADLINES_PER_S)
        key = destination, kind, 0 if sends.is_ordered else deadline_mark
        entry = sends.entries.get(key)
        if (
            entry is None
            or entry.request_bytes > _MAX_ENTRY_BYTES
            or entry.deadline_mark != deadline_mark
        ):
            if entry is not None:
                self._stage(entry)
            entry = GatheredEntry(
                self._sender,
                sends.topic,
                destination,
                kind=kind,
                started_s=started_s,
                deadline_s=deadline_s,
                deadline_mark=deadline_mark,
            )
            sends.entries[key] = entry
        return entry

    def _destination(
        self, sends: _TopicSends, messages: Sequence[OutgoingMessage]
    ) -> Destination | None:
        """Return where all messages of a request go; None: not to one queue, or not as one kind.

        Raises:
            RequestError: see `SendOwner.destinations`.
        """
        topic = sends.topic
        if topic.topic_type == meta_pb2.TOPIC_TYPE_NORMAL:
            message_id = messages[0].message_id
            raft_group = preferred_group(message_id, sends.owners)
            queue = self._view.queue_at(topic, raft_group, message_id)
            return Destination(raft_group, queue, topic.queue_count)
        parts = self._sender.destinations(topic, messages, range(len(messages)))
        return parts[0][0] if len(parts) == 1 else None

    def _stage_entries(self, sends: _TopicSends) -> None:
        entries, sends.entries = sends.entries, {}
        for entry in entries.values():
            self._stage(entry)

    def _stage(self, entry: GatheredEntry) -> None:
        try:
            if entry.charge():
                entry.stage()
                return
        except Exception as failure:  # noqa: BLE001 - it ends these sends, not those beside them
            self._requests.failed(SEND, failure)
            entry.refuse(unexpected())
            return
        # There may be room for some of them.
        for pending in entry.alone():
            with ended_by_failure(self._requests, SEND, pending):
                self._sender.stage_alone(pending)

    def _sends_to(self, name: Name) -> _TopicSends | None:
        """Return the sends of this turn to a topic; None: they are not gathered."""
        if name in self._topics:
            return self._topics[name]
        sends = self._topics[name] = self._sends_of(name)
        return sends

    def _sends_of(self, name: Name) -> _TopicSends | None:
        """Return what sends to a topic have in common; None: they are not gathered."""
        topic = self._view.topic(*name)
        if topic is None or topic.is_table or topic.topic_type not in _MESSAGE_TYPES:
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
    """Sends to one topic.

    Attributes:
        topic: its row.
        owners: raft groups that have queues of it.
        may_suspect: some messages may have to be looked for before they are sent.
        is_ordered: messages of one queue are staged in the order in which they came.
        taken: sends, before their messages are prepared.
        alike: likewise, several at once.
        entries: by destination, kind and deadline, in hundredths of a second (0 if ordered).
    """

    __slots__ = ("alike", "entries", "is_ordered", "may_suspect", "owners", "taken", "topic")

    def __init__(self, topic: TopicRow, owners: tuple[int, ...], may_suspect: bool) -> None:
        self.topic = topic
        self.owners = owners
        self.may_suspect = may_suspect
        self.is_ordered = topic.topic_type == meta_pb2.TOPIC_TYPE_FIFO
        self.taken: list[_Taken] = []
        self.alike: list[AlikeSend] = []
        self.entries: dict[tuple[Destination, PartKind, int], GatheredEntry] = {}


def _by_raft_group(
    owners: tuple[int, ...], sends: Sequence[Sequence[OutgoingMessage]]
) -> Mapping[int, Sequence[int]]:
    """Return the raft groups that sends prefer -> the numbers of those sends."""
    if len(owners) == 1:
        return {owners[0]: range(len(sends))}
    numbers: dict[int, list[int]] = {}
    for number, messages in enumerate(sends):
        raft_group = preferred_group(messages[0].message_id, owners)
        numbers.setdefault(raft_group, []).append(number)
    return numbers


def _runs_with_room(numbers: Sequence[int], sizes_bytes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Divide sends so that no run is larger than an entry may become before it is full."""
    run: list[int] = []
    run_bytes = 0
    for number in numbers:
        run.append(number)
        run_bytes += sizes_bytes[number]
        if run_bytes > _MAX_ENTRY_BYTES:
            yield run
            run, run_bytes = [], 0
    if run:
        yield run
