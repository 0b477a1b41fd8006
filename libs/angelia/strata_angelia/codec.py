"""Port for turning messages into bytes; the caller of a connection or call chooses the codec.

Every server takes every codec; the caller names one in the handshake (tcp) or in a header (http2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from strata_angelia.avro import AvroError, decode_record, encode_record
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
            raise _not_a(message_type) from None


class JsonCodec:
    """Protobuf's JSON mapping with the field names of the protos; fields it lacks are ignored."""

    name = "json"

    def encode(self, message: Message) -> bytes:
        """See `Codec.encode`."""
        values = json_format.MessageToDict(message, preserving_proto_field_name=True)
        return json.dumps(values, separators=(",", ":")).encode()

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """See `Codec.decode`."""
        message = message_type()
        try:
            json_format.Parse(data.decode(), message, ignore_unknown_fields=True)
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise _not_a(message_type, f": {error}") from None
        return message


class AvroCodec:
    """Avro's binary encoding, by a schema derived from the message's descriptor (`avro.py`)."""

    name = "avro"

    def encode(self, message: Message) -> bytes:
        """See `Codec.encode`."""
        return encode_record(message)

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """See `Codec.decode`."""
        try:
            return decode_record(data, message_type)
        except AvroError as error:
            raise _not_a(message_type, f": {error}") from None


def _not_a(message_type: type[Message], detail: str = "") -> AngeliaError:
    return AngeliaError(BAD_REQUEST, f"not a {message_type.DESCRIPTOR.full_name}{detail}")


CODECS: Mapping[str, Codec] = {
    codec.name: codec for codec in (ProtobufCodec(), JsonCodec(), AvroCodec())
}
