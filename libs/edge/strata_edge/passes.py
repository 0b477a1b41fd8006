"""Port of the native passes over the bytes of hot calls; the extension module is the adapter.

A pass is one walk over a request instead of a Python object per field. It has no rules of its own:
it takes the usual form of a request that a plain twin in the broker would take, and gives the same
bytes. It gives nothing of any other request, and the twin decides. Without the extension the twin
does all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

Outgoing = TypeVar("Outgoing", bound=tuple[object, ...])


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
    """

    digest: bytes
    identity: bytes
    message_type: bytes
    system_properties: bytes
    user_property: bytes
    message_group: bytes


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

    def store(self, request: bytes, sender: bytes) -> list[Outgoing]:
        """Return what is stored of each message, for a topic that takes any type.

        Args:
            request: `read` took it.
            sender: fragment of system properties that says who sent it.

        Raises:
            ValueError: `read` did not take it.
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
