"""Messages that a consumer gives up by a normal send to its topic of retries.

An orderly consumer tries a message by itself and sends it once its tries are used up, with the
number of tries in the header; a concurrent consumer sends so if CONSUMER_SEND_MSG_BACK failed. As
in RocketMQ, the broker makes a dead letter of a message with more tries than allowed, and of every
such message of a group that has locked queues, because then its consumers are orderly.
"""

from __future__ import annotations

from hashlib import blake2b, md5

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.given_up import GivenUpMessages, letter_of
from strata_broker.remoting.queue_locks import QueueLocks
from strata_broker.remoting.send_backs import most_times
from strata_broker.remoting.send_headers import SendHeader
from strata_broker.sends.letter_sends import check_letter
from strata_mq.requests import RETRY_PREFIX, Limits
from strata_remoting import OffsetPlace


class LastTries:
    """See the module docstring.

    Args:
        given_up: stores the dead letters.
        locks: of queues.
        view: knows consumer groups.
        limits: of a message.
    """

    def __init__(
        self, given_up: GivenUpMessages, locks: QueueLocks, view: MetadataView, *, limits: Limits
    ) -> None:
        self._given_up = given_up
        self._locks = locks
        self._view = view
        self._limits = limits

    def is_last(self, header: SendHeader) -> bool:
        """Whether the message of a send is to become a dead letter."""
        if not header.topic.startswith(RETRY_PREFIX) or header.is_batch:
            return False
        group = header.topic.removeprefix(RETRY_PREFIX)
        most = header.max_reconsume_times
        if most is None:
            most = most_times(self._view, group)
        return header.reconsume_times > most or self._locks.has_any(group)

    async def give_up(
        self, exchange: Exchange, header: SendHeader, message: definition_pb2.Message
    ) -> OffsetPlace:
        """Store a dead letter; return where it is.

        Raises:
            RequestError: a limit of messages; the consumer group does not exist; storage refused.
            RemotingRefusal: see `GivenUpMessages.store`.
        """
        group = header.topic.removeprefix(RETRY_PREFIX)
        check_letter(self._limits, message)
        letter = letter_of(message, group)
        digest = md5(letter.body, usedforsecurity=False).hexdigest()
        # A repeat has the same id, but one try more if its client missed the answer.
        known_as = letter.topic.name, letter.system_properties.message_id, digest
        mark = blake2b(repr((group, *known_as)).encode(), digest_size=16).hexdigest().upper()
        return await self._given_up.store(exchange, group, letter, mark)
