"""Stores messages in dead-letter topics for consumers that hold no lease.

A consumer with a lease gives it up in the entry that copies the message (rule 26). A consumer of
the remoting protocol moves its position by itself, after the answer, so an append is enough: the
copy is durable first, and a repeat is a duplicate of its message id (rule 37). A raft group that
was added takes some ids from the others; a letter is looked for where it went before
(`former_groups`). A letter counts in the quotas of sends: a client may write it as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2
from strata_broker.base import errors
from strata_broker.base.shares import all_owners_of
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.sends.send import Sender
from strata_broker.sends.staged_sends import StagedSends, outgoing_again
from strata_mq.layout import PartKey, PartKind
from strata_mq.requests import Code, Limits, RequestError, check_message, check_overhead
from strata_mq.slots import rendezvous


class LetterPlace(NamedTuple):
    """Where a dead letter is: the number of the queue is that of its raft group."""

    raft_group: int
    offset: int


class LetterSends:
    """See the module docstring.

    Args:
        sender: stages messages.
        view: knows the raft groups.
        timeout_s: time for one letter.
    """

    def __init__(self, sender: Sender, view: MetadataView, timeout_s: float) -> None:
        self._sender = sender
        self._view = view
        self._timeout_s = timeout_s

    async def store(
        self, letter: definition_pb2.Message, topic: TopicRow, client_id: str, *, peer: str
    ) -> LetterPlace:
        """Store a message in a dead-letter topic; return where it is, or was already.

        Args:
            letter: names the topic that it came from, and has no fields of a delivery.
            topic: the dead-letter topic of a consumer group.
            client_id: of the consumer, whose share of the bytes in flight is charged.
            peer: `host:port` of the consumer.

        Raises:
            RequestError: TOO_MANY_REQUESTS, also for a quota of sends; FORBIDDEN: there is no raft
                group; no answer in time.
        """
        sender, owners = self._sender, self._view.owners(topic)
        if not owners:
            raise RequestError(Code.FORBIDDEN, "no writable queue")
        deadline_s = sender.clock.monotonic_s() + self._timeout_s
        copy = definition_pb2.Message()
        copy.CopyFrom(letter)
        outgoing = outgoing_again(copy, client_id, sender.checksum)
        raft_group = rendezvous(outgoing.message_id, owners)
        former = former_groups(outgoing.message_id, owners)
        earlier = await self._earlier(topic, letter.system_properties.message_id, former)
        if earlier is not None:
            return earlier
        quotas = sender.quotas
        if quotas.limit_sends:
            quotas.check_send(topic)
        staged = StagedSends(1, sender.budget)
        sharers = all_owners_of(client_id, peer) if sender.budget.counts_shares else ()
        staged.charge(0, (topic.namespace, raft_group, len(outgoing.stored)), sharers)
        if quotas.limit_sends:
            quotas.charge_send(topic, 1, len(outgoing.stored))
        key = PartKey(topic.topic_id, raft_group, 0, 0)
        sender.appender.stage(raft_group, key, (outgoing,), (0,), staged, deadline_s)
        await staged.done
        for failure in staged.failures.values():
            raise failure
        return LetterPlace(raft_group, staged.offsets[0])

    async def _earlier(
        self, topic: TopicRow, message_id: str, raft_groups: Sequence[int]
    ) -> LetterPlace | None:
        """Look for a letter where it went with fewer raft groups; None: it is not there."""
        earlier = self._sender.earlier
        since_ms = earlier.oldest_ms()
        if not raft_groups:
            return None
        if not earlier.try_begin(1):
            raise errors.too_many_requests()
        try:
            found = await earlier.find(
                topic, message_id, PartKind.PLAIN, raft_groups, self._timeout_s, since_ms=since_ms
            )
        finally:
            earlier.end(1)
        return None if found is None else LetterPlace(found.raft_group, found.offset)


def former_groups(message_id: bytes, owners: Sequence[int]) -> list[int]:
    """Return where a letter went before the latest raft groups were added, latest first.

    Raft groups get ascending numbers, so the groups of any earlier time are the first of `owners`.
    Few of them were ever the preferred one: about the logarithm of their number.

    Args:
        message_id: packed.
        owners: raft groups by number.
    """
    former: list[int] = []
    preferred = rendezvous(message_id, owners)
    while (count := owners.index(preferred)) > 0:
        preferred = rendezvous(message_id, owners[:count])
        former.append(preferred)
    return former


def check_letter(limits: Limits, message: definition_pb2.Message) -> None:
    """Check a message that a client sends as a dead letter by the limits of an ordinary send.

    Its delivery time is not checked: a letter has none.

    Raises:
        RequestError: the first thing that is wrong with it.
    """
    system = message.system_properties
    check_message(
        limits,
        body_bytes=len(message.body),
        message_id=system.message_id,
        tag=system.tag,
        keys=system.keys,
        message_group=system.message_group if system.HasField("message_group") else None,
        properties=message.user_properties,
    )
    check_overhead(limits, message.ByteSize() - len(message.body))
