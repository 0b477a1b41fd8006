"""Port of a send to the `Sender` that owns it: what a staged request needs until its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from strata.storage.v1 import storage_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.metadata.budget import SendBudget
from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_broker.metadata.recorder import Recorder
from strata_broker.sends.answers import AnswerEach
from strata_broker.sends.searches import Destination, Searches
from strata_broker.storage_client.append_lanes import Appender
from strata_edge.ports import HotCall
from strata_mq.layout import Checksum, OutgoingMessage
from strata_mq.requests import RequestError
from strata_runtime.clock import Clock
from strata_runtime.tasks import RequestTasks

SentWriter = Callable[[Sequence[str], Sequence[int]], bytes]
"""`wire.sent`, or the native pass that does the same."""


class SendOwner(Protocol):
    """See the module docstring.

    Attributes:
        appender: puts messages into the batches of raft groups.
        budget: counts the bytes in flight.
        searches: look for messages that may be stored already.
        handles: signs handles of half and delayed messages.
        checksum: of a message's bytes.
        clock: time.
        recorder: counts messages and answers.
        requests: note unexpected failures.
        sent: serialises the answer to messages that are stored.
        answer_each: gives such answers to many calls.
    """

    appender: Appender
    budget: SendBudget
    searches: Searches
    handles: HandleSigner
    checksum: Checksum
    clock: Clock
    recorder: Recorder
    requests: RequestTasks
    sent: SentWriter
    answer_each: AnswerEach

    def destinations(
        self,
        topic: TopicRow,
        outgoing: Sequence[OutgoingMessage],
        indexes: Sequence[int],
        named: int = LEADER_CHOOSES,
    ) -> list[tuple[Destination, Sequence[int]]]:
        """Return the destinations of messages, each with the messages' indexes.

        `named` is the queue that the send names for messages without a message group.

        Raises:
            RequestError: FORBIDDEN: a queue has no owner; MESSAGE_CORRUPTED.
        """

    def topic_by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic again for messages that have to be staged anew."""

    def learn(self, topic_id: int, raft_group: int, result: storage_pb2.PartResult) -> None:
        """Learn a queue's place from a refusal."""

    def refuse(
        self, call: HotCall, message_count: int, failure: RequestError, started_s: float
    ) -> None:
        """Answer with one error for the request and each of its messages."""
