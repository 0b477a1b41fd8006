"""Sends the message of a form: its body may be any bytes, which no command line holds."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any

from apache.rocketmq.v2 import definition_pb2
from strata_cli import messaging
from strata_cli.client import AdminClient
from strata_cli.errors import UsageError
from strata_cli.options import milliseconds, pairs, time_ms
from strata_cli.views import View
from strata_console.acts import Act

ENCODING = "body_encoding"
"""Key of the form's choice: text, base64 or hex."""


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the command line that is shown: other bytes than text are in a file."""
    shown = dict(values)
    encoding = shown.pop(ENCODING, "text")
    if encoding != "text" or shown.get("body") == "-":
        shown["body"] = "-"
    return shown


def send(client: AdminClient, act: Act, values: Mapping[str, Any]) -> View:
    """Send the message of a form.

    Raises:
        CliError: a value is wrong, or the broker refused the message.
    """
    act.line(shown_values(values))
    # A form may give a number as one.
    given = {
        name: str(value) if isinstance(value, int) else value
        for name, value in values.items()
        if value not in (None, "")
    }
    exclusive = ("message_group", "delay", "deliver_at", "priority")
    if [name in given for name in exclusive].count(True) > 1:
        raise UsageError("give at most one of message group, delay, time of delivery and priority")
    deliver_at_ms = time_ms(given["deliver_at"]) if "deliver_at" in given else 0
    if "delay" in given:
        deliver_at_ms = round(time.time() * 1_000) + milliseconds(given["delay"])
    outgoing = messaging.Outgoing(
        topic=definition_pb2.Resource(
            resource_namespace=given.get("namespace", ""), name=given["topic"]
        ),
        body=_bytes(given["body"], given.get(ENCODING, "text")),
        tag=given.get("tag", ""),
        keys=_lines(given.get("keys", "")),
        message_group=given.get("message_group", ""),
        properties=pairs(_lines(given.get("properties", ""))),
        deliver_at_ms=deliver_at_ms,
        priority=int(given["priority"]) if "priority" in given else None,
    )
    receipt = messaging.send(client, outgoing)
    view: View = {
        "message_id": receipt.message_id,
        "topic": given["topic"],
        "offset": receipt.offset,
    }
    return view | ({"recall_handle": receipt.recall_handle} if receipt.recall_handle else {})


def _lines(value: Any) -> list[str]:
    lines = value.split("\n") if isinstance(value, str) else map(str, value)
    return [line.strip() for line in lines if line.strip()]


def _bytes(body: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return base64.b64decode(body, validate=True)
        if encoding == "hex":
            return bytes.fromhex(body)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"body is not {encoding}: {error}") from None
    if encoding != "text":
        raise UsageError(f"{ENCODING} {encoding}: choose text, base64, hex")
    return body.encode()
