"""Port of the native passes over the bytes of hot calls; the extension module is the adapter.

A pass is one walk over a request instead of a Python object per field. It has no rules of its own:
it takes the usual form of a request that a plain twin in the broker would take, and gives the same
bytes. It gives nothing of any other request, and the twin decides. Without the extension the twin
does all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

Outgoing = TypeVar("Outgoing", bound=tuple[object, ...])
Call = TypeVar("Call", bound=object)

AlikeCalls: TypeAlias = tuple[
    Mapping[str, str], str, str, str, int, list[Call], list[list[str]], list[int], float | None
]
"""SendMessages of a turn that differ in their messages only: headers, client's address, namespace
and name of the topic as the requests have them, number of the messages' type, calls, ids of each
call's messages, bytes of each request, the least time that one has left. Times in the same
hundredth of a second are alike."""


class SendLimits(NamedTuple):
    """Limits of one request: counts, and bytes of UTF-8."""

    max_messages: int
    max_body_bytes: int
    max_properties_bytes: int
    max_overhead_bytes: int
    max_property_count: int
    max_key_count: int
    max_message_id_bytes: int
    max_message_group_bytes: int


class SendFragments(NamedTuple):
    """Serialised parts that the broker adds to a message.

    Attributes:
        digest: before the 32 digits of the body's MD5.
        identity: body encoding IDENTITY.
        message_type: before the number of a message type.
        system_properties: key of the system properties.
        user_property: key of a user property.
        message_group: name of the user property that repeats the message group, as a field.
        ok_status: status OK as a field of an answer, and of an entry of it.
    """

    digest: bytes
    identity: bytes
    message_type: bytes
    system_properties: bytes
    user_property: bytes
    message_group: bytes
    ok_status: bytes


class SendPass(Protocol[Outgoing]):
    """Reads SendMessageRequests."""

    def read(self, request: bytes) -> tuple[str, str, list[str]] | None:
        """Read a request; neither hash nor copy its bodies.

        Args:
            request: serialised.

        Returns:
            Namespace and name of the topic as the request has them, and the id of each message;
            None: the twin decides.
        """

    def store_each(
        self, requests: Sequence[bytes], senders: Sequence[bytes]
    ) -> list[list[Outgoing]]:
        """Return what is stored of each request's messages, for a topic that takes any type.

        Args:
            requests: `read` took them.
            senders: for each a fragment of system properties that says who sent it.

        Raises:
            ValueError: `read` did not take one, or the numbers differ.
        """

    def sent(self, message_ids: Sequence[str], offsets: Sequence[int]) -> bytes:
        """Serialise the answer to messages that are all stored.

        Args:
            message_ids: of the messages.
            offsets: of the same messages, in their queues.
        """

    def gather(
        self, calls: list[Call], max_request_bytes: int
    ) -> tuple[list[AlikeCalls[Call]], list[Call]]:
        """Find sends that are alike.

        Args:
            calls: `ports.HotCall`s of SendMessage.
            max_request_bytes: larger requests are not alike.

        Returns:
            Groups of calls whose requests `read` would take, and all other calls; both in the order
            in which they came.
        """

    def answer_each(
        self, calls: list[Call], message_ids: Sequence[Sequence[str]], offsets: Sequence[int]
    ) -> list[tuple[int, Exception]]:
        """Complete calls whose messages are all stored with what `sent` gives.

        Args:
            calls: `ports.HotCall`s.
            message_ids: of each call's messages.
            offsets: of all messages.

        Returns:
            The calls that failed to take their answer, by number, and their failures.

        Raises:
            ValueError: the numbers differ; no call was answered.
        """


class ReceiptForm(NamedTuple):
    """How a signed receipt handle is written.

    Attributes:
        version: high half of its first byte.
        auto_renewed: flag of its first byte: the lease has no end of its own.
        person: personalisation of its tag.
    """

    version: int
    auto_renewed: int
    person: bytes


class DeliveryFragments(NamedTuple):
    """Keys of the fields that a delivery adds to a message, and of those around them.

    Attributes:
        store_timestamp: of a system property, as all keys but the last two and those of its parts.
        seconds: part of the timestamp.
        nanos: part of the timestamp.
        store_host: host that clients log.
        receipt_handle: of this delivery.
        queue: public queue id.
        queue_offset: in the queue.
        attempt: number of this delivery.
        system_properties: of a message.
        message: of a response.
    """

    store_timestamp: bytes
    seconds: bytes
    nanos: bytes
    store_host: bytes
    receipt_handle: bytes
    queue: bytes
    queue_offset: bytes
    attempt: bytes
    system_properties: bytes
    message: bytes


class DeliveryPass(Protocol):
    """Turns leased messages into responses of a receive."""

    def deliver(
        self,
        popped: bytes,
        place: tuple[int, int, int],
        store_host: bytes,
        key: tuple[int, bytes],
    ) -> tuple[list[bytes], bytes, tuple[int, int], tuple[int, int]] | None:
        """Serialise the messages of a pop for their client.

        Args:
            popped: a serialised PopResponse; its messages have their bytes.
            place: raft group, id of the consumer group, id of the topic.
            store_host: host that clients log as the one that stored the messages.
            key: low half of the id of the key that signs handles, and its secret.

        Returns:
            A response for each message; of each lease 28 bytes with queue, offset, lease number,
            generation and end; sizes and counts of messages at their first and at later attempts.
            None: the twin decides.
        """


class ReceiptPass(Protocol):
    """Reads receipt handles."""

    def read(
        self,
        texts: list[str],
        keys: Sequence[tuple[int, bytes]],
        consumer_group_id: int,
        topic_id: int,
    ) -> list[tuple[int, bytes]] | None:
        """Read handles that are all signed, good and of one consumer group and topic.

        Args:
            texts: the handles.
            keys: low half of the id, and the secret, of each valid key.
            consumer_group_id: whose leases they have to name.
            topic_id: of what.

        Returns:
            The raft group of each lease, and the lease as a field of GroupLeases; None: the twin
            decides.
        """


class AckPass(Protocol):
    """Reads AckMessageRequests."""

    def read(self, request: bytes) -> tuple[bytes, list[str], bytes] | None:
        """Read a request: group, topic, entries with a message id and a handle.

        Args:
            request: serialised.

        Returns:
            Group and topic as a request of their own, the handles, and the answer for the case
            that all are OK; None: the twin decides.
        """


class NativePasses(Protocol):
    """Makes passes."""

    def SendPass(
        self,
        outgoing_type: type[Outgoing],
        message_types: Sequence[int],
        limits: SendLimits,
        fragments: SendFragments,
        reserved: Sequence[str],
    ) -> SendPass[Outgoing]:
        """Make a pass over SendMessageRequests.

        Args:
            outgoing_type: a named tuple with the fields of `strata_mq.layout.OutgoingMessage`.
            message_types: of its messages, by number.
            limits: a request beyond them is the twin's.
            fragments: what is added.
            reserved: names of user properties; a request that uses one is the twin's.
        """

    def DeliveryPass(self, form: ReceiptForm, fragments: DeliveryFragments) -> DeliveryPass:
        """Make a pass over leased messages.

        Args:
            form: of the handles it writes.
            fragments: what it adds to messages.
        """

    def ReceiptPass(self, form: ReceiptForm) -> ReceiptPass:
        """Make a pass over receipt handles.

        Args:
            form: of the handles it reads.
        """

    def AckPass(self, ok_answer: bytes, ok_entry: bytes) -> AckPass:
        """Make a pass over AckMessageRequests.

        Args:
            ok_answer: status OK as a field of the answer.
            ok_entry: status OK as a field of an entry of the answer.
        """
