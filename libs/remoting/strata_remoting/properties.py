"""Properties of a message as one text: `name 0x01 value 0x02 name 0x01 value ...`."""

from __future__ import annotations

from collections.abc import Mapping

_BETWEEN = "\x01"
_END = "\x02"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return properties as one text; each ends with 0x02, as Java's clients expect."""
    return "".join(f"{name}{_BETWEEN}{value}{_END}" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties of a text; pieces without a name are passed over, as RocketMQ does."""
    found: dict[str, str] = {}
    for piece in text.split(_END):
        name, between, value = piece.partition(_BETWEEN)
        if name and between:
            found[name] = value
    return found
