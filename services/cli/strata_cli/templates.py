r"""Templates: how a message is printed (`--format`), and values of messages that are sent.

`{NAME}` is a field; `\n`, `\t`, `\0` and `\\` are what they are in C. A template for printing knows
only the fields of messages; one for sending leaves anything in braces alone that is no field,
because a JSON body has braces, too.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Mapping

from strata_cli.errors import UsageError
from strata_cli.readable import printable, readable
from strata_cli.views import View

PRINTED_FIELDS = (
    "message_id",
    "topic",
    "tag",
    "keys",
    "body",
    "body_base64",
    "message_group",
    "priority",
    "type",
    "properties",
    "queue",
    "offset",
    "delivery_attempt",
    "receipt_handle",
    "born_time",
    "born_time_ms",
    "store_time",
    "store_time_ms",
)
"""Fields of a printed message; `property.NAME` is one property of it."""

SENT_FIELDS = ("n", "line", "uuid", "now_ms")
"""Fields of a sent message: its number, its line of input, a new id, the time."""

_PROPERTY = "property."
_FIELD = re.compile(r"\{([a-z_]+|property\.[^{}]+)\}")
_ESCAPE = re.compile(r"\\(.)", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class Format:
    r"""A template that prints messages; its bytes are written as they are.

    Args:
        template: for instance `{store_time} {body}\n`.
        is_for_terminal: control characters of messages become escapes.

    Raises:
        UsageError: it names a field that messages do not have.
    """

    def __init__(self, template: str, *, is_for_terminal: bool) -> None:
        text = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), template)
        self._is_for_terminal = is_for_terminal
        # Texts at even places, names of fields at odd ones.
        self._parts = _FIELD.split(text)
        for name in self._parts[1::2]:
            if name not in PRINTED_FIELDS and not name.startswith(_PROPERTY):
                known = ", ".join((*PRINTED_FIELDS, f"{_PROPERTY}NAME"))
                raise UsageError(f"--format: {{{name}}} is not a field; known are {known}")

    def of(self, view: View) -> bytes:
        """Return a message as this template prints it."""
        parts = [
            self._field(part, view) if place % 2 else part.encode(errors="surrogateescape")
            for place, part in enumerate(self._parts)
        ]
        return b"".join(parts)

    def _field(self, name: str, view: View) -> bytes:
        if name == "body" and not self._is_for_terminal:
            return base64.b64decode(view["body_base64"])
        if name.startswith(_PROPERTY):
            value: object = view["properties"].get(name.removeprefix(_PROPERTY), "")
        elif name in ("born_time", "store_time"):
            value = readable(f"{name}_ms", view[f"{name}_ms"])
        elif name == "body":
            value = body_text(view)
        elif name == "keys":
            value = ",".join(view["keys"])
        elif name == "properties":
            value = ",".join(f"{key}={each}" for key, each in view["properties"].items())
        else:
            value = view.get(name, "")
        text = str(value)
        return (printable(text) if self._is_for_terminal else text).encode()


def body_text(view: View) -> str:
    """Return a body that can be read: its text, or how many bytes it has."""
    if view["body"] is not None:
        return str(view["body"])
    return f"<{len(base64.b64decode(view['body_base64']))} bytes that are no UTF-8 text>"


def line_of(view: View) -> str:
    """Return a message as one line for people, without control characters."""
    place = f"{view['queue']}:{view['offset']}"
    parts = [readable("store_time_ms", view["store_time_ms"]), place]
    if view["tag"]:
        parts.append(f"[{view['tag']}]")
    if view["keys"]:
        parts.append(",".join(view["keys"]))
    return printable("  ".join([*parts, body_text(view)]))


def fields_of(number: int, line: str = "") -> dict[str, str]:
    """Return the values of `SENT_FIELDS` for one message.

    Args:
        number: of the message, from 1.
        line: of the input, without its end.
    """
    return {
        "n": str(number),
        "line": line,
        "uuid": str(uuid.uuid4()),
        "now_ms": str(round(time.time() * 1_000)),
    }


def filled(template: str, fields: Mapping[str, str]) -> str:
    """Return a text with the values of its fields; anything else in braces stays."""
    return _FIELD.sub(lambda match: fields.get(match[1], match[0]), template)
