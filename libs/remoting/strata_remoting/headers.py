"""The two encodings of a frame's header: JSON and ROCKETMQ.

Source: RocketMQ's documents of the protocol; an answer has the encoding of its request. The lengths
inside a ROCKETMQ header are checked against the header before anything is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from strata_remoting.codes import Language
from strata_remoting.command import RemotingCommand, RemotingError

_FIXED = struct.Struct(">hBhii")
_LENGTH = struct.Struct(">i")
_SHORT_LENGTH = struct.Struct(">h")
_MOST_NAME_BYTES = (1 << 15) - 1
_LANGUAGES = {language.name: int(language) for language in Language}
# Clients write the name as Java's enum has it.
_NAMES = {int(language): language.name for language in Language}


class Serialization(IntEnum):
    """Encoding of a header."""

    JSON = 0
    ROCKETMQ = 1


def encode_header(command: RemotingCommand, serialization: Serialization) -> bytes:
    """Return a header's bytes.

    Raises:
        RemotingError: a name of a field, the code or the version does not fit.
    """
    if serialization is Serialization.JSON:
        return _encode_json(command)
    return _encode_binary(command)


def decode_header(
    data: bytes, body: bytes, serialization: Serialization, max_fields: int
) -> RemotingCommand:
    """Return the command of a header and a body.

    Args:
        data: the header.
        body: what followed it.
        serialization: encoding of the header.
        max_fields: most fields that a header may have.

    Raises:
        RemotingError: it is no header, or it has too many fields.
    """
    if serialization is Serialization.JSON:
        return _decode_json(data, body, max_fields)
    return _decode_binary(data, body, max_fields)


# JSON -------------------------------------------------------------------------------------------


def _encode_json(command: RemotingCommand) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "flag": command.flag,
        "language": _NAMES.get(command.language, Language.OTHER.name),
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": Serialization.JSON.name,
        "version": command.version,
    }
    if command.fields:
        header["extFields"] = dict(command.fields)
    if command.remark:
        header["remark"] = command.remark
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _decode_json(data: bytes, body: bytes, max_fields: int) -> RemotingCommand:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemotingError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise RemotingError("the header is no JSON object")
    language = header.get("language", Language.JAVA.name)
    return RemotingCommand(
        _integer(header, "code"),
        _integer(header, "opaque", 0),
        _json_fields(header.get("extFields"), max_fields),
        body,
        flag=_integer(header, "flag", 0),
        language=_LANGUAGES.get(str(language).upper(), int(Language.OTHER)),
        version=_integer(header, "version", 0),
        remark=_text(header.get("remark")),
    )


def _json_fields(given: object, max_fields: int) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RemotingError("extFields is no JSON object")
    _check_count(len(given), max_fields)
    for name in given:
        if not name.isascii():
            _check_text(name)
    return {name: _text(value) for name, value in given.items() if value is not None}


def _text(value: object) -> str:
    """Return a value as Java's clients mean it: they write numbers and booleans as texts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        text = str(value)
        if not text.isascii():
            _check_text(text)
        return text
    raise RemotingError(f"a field holds a {type(value).__name__} instead of a text")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RemotingError("a field is no UTF-8") from None


def _integer(header: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = header.get(name, default)
    # `bool` is an `int` to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise RemotingError(f"{name} is no number of 32 bits: {str(value)[:40]}")
    return value


# ROCKETMQ ---------------------------------------------------------------------------------------


def _encode_binary(command: RemotingCommand) -> bytes:
    parts: list[bytes] = []
    for name, value in command.fields.items():
        key, text = name.encode(), value.encode()
        if len(key) > _MOST_NAME_BYTES:
            raise RemotingError(f"the name of a field has {len(key)} bytes")
        parts += (_SHORT_LENGTH.pack(len(key)), key, _LENGTH.pack(len(text)), text)
    fields, remark = b"".join(parts), command.remark.encode()
    try:
        fixed = _FIXED.pack(
            command.code, command.language, command.version, command.opaque, command.flag
        )
    except struct.error as error:
        raise RemotingError(f"a number does not fit into a ROCKETMQ header: {error}") from None
    return b"".join((fixed, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(fields)), fields))


def _decode_binary(data: bytes, body: bytes, max_fields: int) -> RemotingCommand:
    if len(data) < _FIXED.size:
        raise RemotingError(f"the header has {len(data)} bytes")
    code, language, version, opaque, flag = _FIXED.unpack_from(data)
    remark, at = _piece(data, _FIXED.size, len(data), _LENGTH)
    block, end = _piece(data, at, len(data), _LENGTH)
    if end != len(data):
        raise RemotingError(f"{len(data) - end} bytes follow the header's fields")
    return RemotingCommand(
        code,
        opaque,
        _binary_fields(block, max_fields),
        body,
        flag=flag,
        language=language,
        version=version,
        remark=_utf8(remark),
    )


def _binary_fields(block: bytes, max_fields: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(block):
        name, at = _piece(block, at, len(block), _SHORT_LENGTH)
        value, at = _piece(block, at, len(block), _LENGTH)
        fields[_utf8(name)] = _utf8(value)
        _check_count(len(fields), max_fields)
    return fields


def _piece(data: bytes, at: int, end: int, length: struct.Struct) -> tuple[bytes, int]:
    """Return a piece that begins with its length, and where it ends."""
    if at + length.size > end:
        raise RemotingError("the header ends within a length")
    (size,) = length.unpack_from(data, at)
    at += length.size
    if not 0 <= size <= end - at:
        raise RemotingError(f"a length in the header is {size}; {end - at} bytes are left")
    return data[at : at + size], at + size


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RemotingError("a text in the header is no UTF-8") from None


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RemotingError(f"the header has {count} fields; {most} are allowed")
