"""Templates of messages that are printed, and of values that are sent."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from strata_cli.errors import UsageError
from strata_cli.templates import Format, fields_of, filled, line_of


def view(body: bytes = b"two\npizzas") -> dict[str, Any]:
    """Return a message as `-o json` prints it."""
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "message_id": "01AB",
        "topic": "orders",
        "tag": "food",
        "keys": ["k1", "k2"],
        "body": text,
        "body_base64": base64.b64encode(body).decode(),
        "properties": {"a.b": "1", "c": "2"},
        "queue": 3,
        "offset": 42,
        "store_time_ms": 1_700_000_000_456,
        "born_time_ms": 1_700_000_000_123,
    }


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        (r"{queue}:{offset} {body}\n", b"3:42 two\npizzas\n"),
        (r"{keys}\t{tag}\0", b"k1,k2\tfood\0"),
        ("{property.a.b}{property.none}|{properties}", b"1|a.b=1,c=2"),
        ("{store_time}", b"2023-11-14T22:13:20.456Z"),
        (r"a\\n{receipt_handle}", b"a\\n"),
    ],
)
def test_a_format_prints_fields(template: str, printed: bytes) -> None:
    """Fields, properties and escapes; a field that this message lacks is empty."""
    assert Format(template, is_for_terminal=False).of(view()) == printed


def test_bytes_are_kept_but_for_a_terminal() -> None:
    """A terminal is never moved by a message."""
    message = view(b"\x1b[2J\xff")
    assert Format("{body}", is_for_terminal=False).of(message) == b"\x1b[2J\xff"
    assert b"no UTF-8 text" in Format("{body}", is_for_terminal=True).of(message)
    assert Format("{body}", is_for_terminal=True).of(view(b"\x1b[2J")) == b"\\x1b[2J"
    assert "\n" not in line_of(view())
    assert line_of(view()).endswith("3:42  [food]  k1,k2  two\\npizzas")


def test_an_unknown_field_is_named() -> None:
    """With the fields there are."""
    with pytest.raises(UsageError, match=r"\{colour\} is not a field; known are message_id"):
        Format("{colour}", is_for_terminal=False)


def test_a_sent_text_keeps_what_is_no_field() -> None:
    """JSON and other templates stay as they are."""
    fields = fields_of(7, "a {n} b")
    assert filled('{"n": {n}, "x": {x}}', fields) == '{"n": 7, "x": {x}}'
    assert filled("{line}", fields) == "a {n} b"
    assert filled("{uuid}", fields) != filled("{uuid}", fields_of(8))
