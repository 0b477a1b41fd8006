"""How a message becomes bytes: a port, chosen by the caller in the handshake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from strata_angelia.ports import BAD_REQUEST, AngeliaError

MessageT = TypeVar("MessageT", bound=Message)


class Codec(Protocol):
    """One encoding of messages."""

    @property
    def name(self) -> str:
        """Name in the handshake."""

    def encode(self, message: Message) -> bytes:
        """Serialise."""

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """Parse.

        Raises:
            AngeliaError: BAD_REQUEST, these are not the bytes of such a message.
        """


class ProtobufCodec:
    """Protobuf's binary encoding."""

    name = "protobuf"

    def encode(self, message: Message) -> bytes:
        """See `Codec.encode`."""
        return message.SerializeToString()

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """See `Codec.decode`."""
        try:
            return message_type.FromString(data)
        except DecodeError:
            name = message_type.DESCRIPTOR.full_name
            raise AngeliaError(BAD_REQUEST, f"not a {name}") from None


CODECS: Mapping[str, Codec] = {"protobuf": ProtobufCodec()}
