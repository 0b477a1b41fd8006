"""Sends dead letters back to the topics they came from.

A redrive consumes the dead-letter topic with its own consumer group, and acks a letter only when
the new message is stored. So a crash can repeat a letter, but it loses nothing. Its leases are
auto-renewed leases of a client that lives as long as the call: letters that were not sent are
released at the end, or when the broker dies. The new message id is derived from the letter's place,
so storage recognises a repeat inside the dedupe window and stores it once.

Every consumer group of the topic gets the new message, not only the one that gave it up.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import google_crc32c

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import current_principal, topic_target
from strata_broker.base import errors
from strata_broker.base.identity import BrokerIdentity
from strata_broker.clients.provision import Provisioner, topic_not_found
from strata_broker.clients.sessions import Client, Sessions
from strata_broker.metadata.metadata import TopicRow
from strata_broker.operators.dead_letters import DeadLetters
from strata_broker.operators.message_queries import MAX_PAGE_MESSAGES, MessageQueries
from strata_broker.receives.handles import lease_field
from strata_broker.receives.receive import topic_ref
from strata_broker.sends.send import Sender
from strata_broker.sends.staged_sends import StagedSends, outgoing_again
from strata_broker.storage_client.storage_tier import StorageTier
from strata_mq.access import Action
from strata_mq.layout import (
    Checksum,
    OutgoingMessage,
    PartKey,
    key_hash,
)
from strata_mq.requests import (
    REDRIVE_GROUP,
    Code,
    ReceiptHandle,
    RequestError,
    check_not_own_topic,
)
from strata_runtime.limits import Limit

FROM_PROPERTY = "REDRIVE_DEAD_LETTER_TOPIC"
"""User property of a redriven message: the dead-letter topic it lay in."""

ID_PROPERTY = "REDRIVE_MESSAGE_ID"
"""User property of a redriven message: the id under which it became a dead letter."""

COUNT_PROPERTY = "REDRIVE_COUNT"
"""User property of a redriven message: how often it was redriven, this time counted."""

_MAX_REDRIVES = 8
# A producer may write a number of any length.
_COUNT_DIGITS = 10
_DEFAULT_MESSAGES = 256
_POP_MESSAGES = 64
_POP_BYTES = 4 * 1024 * 1024
# Letters that one call leases, including letters that it should not or cannot send.
_MAX_TAKEN = 100_000


class _Taken(NamedTuple):
    """A leased dead letter."""

    raft_group: int
    leased: storage_pb2.LeasedMessage
    letter: definition_pb2.Message


class _Run:
    """The progress of one call."""

    def __init__(
        self,
        topic: TopicRow,
        group: meta_pb2.ConsumerGroup,
        client: Client,
        *,
        wanted: Mapping[int, set[int]] | None,
        left: int,
    ) -> None:
        self.topic = topic
        self.group = group
        self.client = client
        # raft group -> offsets; None: all letters.
        self.wanted = wanted
        self.left = left
        self.left_to_take = _MAX_TAKEN
        self.results: list[admin_pb2.RedrivenMessage] = []

    def take(self, raft_group: int, offset: int) -> bool:
        """Note that a letter is leased; return whether to send it."""
        self.left_to_take -= 1
        if self.wanted is None:
            return True
        found = offset in self.wanted[raft_group]
        self.wanted[raft_group].discard(offset)
        return found

    def goes_on(self, raft_group: int) -> bool:
        """Whether to look at more letters of a raft group."""
        wants = self.wanted is None or bool(self.wanted[raft_group])
        return wants and self.left > 0 and self.left_to_take > 0


class Redriver:
    """See the module docstring."""

    def __init__(
        self,
        identity: BrokerIdentity,
        provisioner: Provisioner,
        dead_letters: DeadLetters,
        *,
        queries: MessageQueries,
        storage: StorageTier,
        sender: Sender,
        sessions: Sessions,
        runtime: CallRuntime,
    ) -> None:
        metrics = runtime.metrics
        self._node_id = identity.node_id
        self._boot_id = identity.boot_id
        self._view = provisioner.view
        self._provisioner = provisioner
        self._dead_letters = dead_letters
        self._queries = queries
        self._storage = storage.client
        self._sender = sender
        self._acker = storage.acker
        self._sessions = sessions
        self._checksum: Checksum = google_crc32c.value
        self._clock = runtime.clock
        self._timeout_s = runtime.config.send.timeout_ms / 1000
        self._under_way = Limit("redrives", _MAX_REDRIVES, "calls", metrics=metrics)
        self._redriven = metrics.counter("strata_broker_redriven_total")
        self._numbers = itertools.count(1)

    async def redrive(
        self, request: admin_pb2.RedriveDeadLettersRequest
    ) -> admin_pb2.RedriveDeadLettersResponse:
        """Send dead letters of a consumer group, or return those that would be sent.

        Raises:
            RequestError: unknown names, MESSAGE_NOT_FOUND, or storage refused.
        """
        topic = self._dead_letters.topic_of((request.namespace, request.consumer_group))
        if request.dry_run:
            return await self._dry_run(topic, request)
        if not self._under_way.try_take():
            raise errors.too_many_requests("too many redrives are under way")
        try:
            results = await self._redrive(topic, request)
        finally:
            self._under_way.give_back()
        return admin_pb2.RedriveDeadLettersResponse(
            messages=results, waiting=await self._dead_letters.waiting(topic)
        )

    # Dry run ------------------------------------------------------------------------------------

    async def _dry_run(
        self, topic: TopicRow, request: admin_pb2.RedriveDeadLettersRequest
    ) -> admin_pb2.RedriveDeadLettersResponse:
        waiting = await self._dead_letters.waiting(topic)
        found = await self._dead_letters.page(
            (request.namespace, request.consumer_group),
            request.max_messages,
            request.page_token,
            waiting_only=True,
        )
        results = []
        for stored, _ in found.letters:
            letter = definition_pb2.Message.FromString(stored.message)
            if request.message_id in ("", letter.system_properties.message_id):
                target = self._view.topic(topic.namespace, letter.topic.name)
                error = topic_not_found(letter.topic.name).text if target is None else ""
                results.append(_result(letter, error))
        return admin_pb2.RedriveDeadLettersResponse(
            messages=results, waiting=waiting, next_page_token=found.next_page_token
        )

    # Redrive ------------------------------------------------------------------------------------

    async def _redrive(
        self, topic: TopicRow, request: admin_pb2.RedriveDeadLettersRequest
    ) -> list[admin_pb2.RedrivenMessage]:
        wanted = await self._wanted(topic, request.message_id) if request.message_id else None
        group = await self._provisioner.system_group(topic.namespace, REDRIVE_GROUP)
        left = min(request.max_messages or _DEFAULT_MESSAGES, MAX_PAGE_MESSAGES)
        with self._leasing_client() as client:
            run = _Run(topic, group, client, wanted=wanted, left=left)
            for raft_group in self._view.holders(topic) if wanted is None else sorted(wanted):
                await self._redrive_queue(run, raft_group)
        if wanted is not None and not run.results:
            raise RequestError(
                Code.MESSAGE_NOT_FOUND,
                f"the dead letter {request.message_id} was redriven, or is being redriven now",
            )
        return run.results

    @contextmanager
    def _leasing_client(self) -> Iterator[Client]:
        """Yield a client whose leases end with the block."""
        client_id = f"strata-redrive@{self._node_id}@{self._boot_id:x}@{next(self._numbers)}"
        client = self._sessions.heard(client_id)
        client.open_calls += 1
        try:
            yield client
        finally:
            client.open_calls -= 1
            self._sessions.terminated(client_id)

    async def _wanted(self, topic: TopicRow, message_id: str) -> dict[int, set[int]]:
        """Return raft group -> offsets of the dead letters of a message.

        Raises:
            RequestError: MESSAGE_NOT_FOUND.
        """
        found = await self._queries.by_id(topic, message_id)
        if not found:
            raise RequestError(Code.MESSAGE_NOT_FOUND, f"no dead letter {message_id}")
        progress = await self._dead_letters.progress(topic)
        wanted: dict[int, set[int]] = {}
        for stored in found:
            # The number of a dead-letter topic's queue is the raft group (rule 26).
            if not progress[stored.queue].is_redriven(stored.offset):
                wanted.setdefault(stored.queue, set()).add(stored.offset)
        return wanted

    async def _redrive_queue(self, run: _Run, raft_group: int) -> None:
        """Redrive letters of one raft group until there are none, or enough."""
        while run.goes_on(raft_group):
            popped = await self._pop(run, raft_group)
            if not popped.messages:
                return
            taken = [
                _Taken(raft_group, leased, definition_pb2.Message.FromString(leased.message))
                for leased in popped.messages
                if run.take(raft_group, leased.offset)
            ]
            if taken:
                await self._send(run, taken)
            # Storage holds a silent client's leases no longer (rule 25).
            self._sessions.heard(run.client.client_id)

    async def _pop(self, run: _Run, raft_group: int) -> storage_pb2.PopResponse:
        # A search for one letter also leases the letters before it, to release them later.
        most = _POP_MESSAGES if run.wanted is None else MAX_PAGE_MESSAGES
        return await self._storage.pop(
            storage_pb2.PopRequest(
                raft_group=raft_group,
                consumer_group_id=run.group.consumer_group_id,
                topic=topic_ref(run.topic),
                queue=raft_group,
                max_messages=min(most, run.left if run.wanted is None else most),
                max_bytes=_POP_BYTES,
                auto_renew=True,
                holder=run.client.holder,
                attempt=key_hash(f"{run.client.client_id}/{next(self._numbers)}"),
                filter=storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL),
                start=storage_pb2.START_POSITION_EARLIEST,
                broker_boot_id=self._boot_id,
                client_id=run.client.client_id,
            )
        )

    async def _send(self, run: _Run, taken: Sequence[_Taken]) -> None:
        """Send letters; ack the letters that are stored."""
        resent = StagedSends(len(taken), self._sender.budget)
        for index, one in enumerate(taken):
            try:
                self._stage(run, index, one, resent)
            except RequestError as bad:
                resent.refused((index,), bad)
        await resent.done
        for index, one in enumerate(taken):
            failure = resent.failures.get(index)
            result = _result(one.letter, failure.text if failure else "")
            if failure is None:
                result.new_message_id = _new_id(run.topic, one)
                result.offset = resent.offsets[index]
                run.left -= 1
            run.results.append(result)
        self._redriven.add(len(taken) - len(resent.failures))
        await self._ack(run, [one for at, one in enumerate(taken) if at not in resent.failures])

    def _stage(self, run: _Run, index: int, one: _Taken, resent: StagedSends) -> None:
        """Put a message into a batch.

        Raises:
            RequestError: its topic is gone or not for clients, or a limit is reached.
        """
        letter = one.letter
        target = self._view.topic(run.topic.namespace, letter.topic.name)
        if target is None:
            raise topic_not_found(letter.topic.name)
        name = (target.namespace, target.name)
        current_principal().require(*topic_target(name), Action.PUB)
        check_not_own_topic(target.name)
        outgoing = redriven_message(
            letter, run.topic.name, _new_id(run.topic, one), run.client.client_id, self._checksum
        )
        [(destination, _)] = self._sender.destinations(target, (outgoing,), (0,))
        raft_group, queue, queue_count = destination
        resent.charge(index, (target.namespace, raft_group, len(outgoing.stored)))
        key = PartKey(target.topic_id, queue, target.slot_base, queue_count)
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        self._sender.appender.stage(raft_group, key, (outgoing,), (index,), resent, deadline_s)

    async def _ack(self, run: _Run, sent: Sequence[_Taken]) -> None:
        """Ack letters that are sent; a letter whose ack fails may be sent again later."""
        if not sent:
            return
        acked = _Acked(len(sent))
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        for index, (raft_group, leased, _) in enumerate(sent):
            lease = ReceiptHandle(
                raft_group,
                run.group.consumer_group_id,
                run.topic.topic_id,
                leased.queue,
                leased.offset,
                leased.lease_number,
                leased.generation,
                leased.visible_at_ms,
            )
            self._acker.ack(raft_group, (lease_field(lease),), acked, (index,), deadline_s)
        await acked.done


class _Acked:
    """Waits for acks, whatever their outcome; see `ack_lanes.AckWaiter`."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def gone(self, number: int) -> bool:
        """See `ack_lanes.AckWaiter`."""
        return False

    def settled(self, numbers: Sequence[int], failures: Mapping[int, RequestError]) -> None:
        """See `ack_lanes.AckWaiter`."""
        self._left -= len(numbers)
        if not self._left:
            self.failed()

    def failed(self) -> None:
        """See `ack_lanes.AckWaiter`."""
        if not self.done.done():
            self.done.set_result(None)


def redriven_message(
    letter: definition_pb2.Message,
    dead_letter_topic: str,
    message_id: str,
    client_id: str,
    checksum: Checksum,
) -> OutgoingMessage:
    """Return a redriven message as it is stored: the letter with a new id and its history.

    It is not checked again: a message that was stored once may be stored again with three more
    properties.
    """
    message = definition_pb2.Message()
    message.CopyFrom(letter)
    properties = message.system_properties
    user_properties = message.user_properties
    count = user_properties.get(COUNT_PROPERTY, "0")
    user_properties[COUNT_PROPERTY] = str(
        int(count) + 1 if count.isdecimal() and len(count) < _COUNT_DIGITS else 1
    )
    user_properties[FROM_PROPERTY] = dead_letter_topic
    user_properties[ID_PROPERTY] = properties.message_id
    properties.message_id = message_id
    return outgoing_again(message, client_id, checksum)


def _new_id(topic: TopicRow, taken: _Taken) -> str:
    """Return the id under which a letter is sent: the same in every repeat.

    After a reset of the redrives' consumer group (another generation) the id is another one.
    """
    leased = taken.leased
    place = f"{topic.topic_id}/{taken.raft_group}/{leased.offset}/{leased.generation}"
    return "01" + blake2b(place.encode(), digest_size=16).hexdigest().upper()


def _result(letter: definition_pb2.Message, error: str) -> admin_pb2.RedrivenMessage:
    return admin_pb2.RedrivenMessage(
        message_id=letter.system_properties.message_id, topic=letter.topic.name, error=error
    )
