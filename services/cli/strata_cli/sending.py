"""Sends many messages: lines of a file or of standard input, or copies of one body.

Several sends are in flight at once, unless they have a message group, whose order counts. The first
message that is refused ends the command; messages that were sent before it stay sent.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from strata_cli import messaging
from strata_cli.client import AdminClient
from strata_cli.errors import CliError, UsageError
from strata_cli.templates import fields_of, filled
from strata_cli.views import View

MAX_IN_FLIGHT = 64
"""Most sends without an answer."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Most bytes of a line that are read into memory; servers take less."""


@dataclass(slots=True)
class Sent:
    """Counts of what was sent.

    Attributes:
        messages: that the broker has stored.
        bytes: of their bodies.
    """

    messages: int = 0
    bytes: int = 0


def copies(outgoing: messaging.Outgoing, count: int) -> Iterator[messaging.Outgoing]:
    """Yield copies of a message; templates in its texts and its body are filled in."""
    try:
        body: str | None = outgoing.body.decode()
    except UnicodeDecodeError:
        body = None
    for number in range(1, count + 1):
        fields = fields_of(number)
        content = outgoing.body if body is None else filled(body, fields).encode()
        yield replace(_filled(outgoing, fields), body=content)


def lines(outgoing: messaging.Outgoing, source: IO[bytes]) -> Iterator[messaging.Outgoing]:
    """Yield a message per line; its bytes stay as they are, without the end of the line.

    Empty lines are skipped, because a message has a body.
    """
    for number, line in enumerate(_lines(source), 1):
        fields = fields_of(number, line.decode(errors="replace"))
        yield replace(_filled(outgoing, fields), body=line)


def records(outgoing: messaging.Outgoing, source: IO[bytes]) -> Iterator[messaging.Outgoing]:
    """Yield a message per JSON line, as `strata message tail -o json` prints it.

    `body` or `body_base64` is the body; `tag`, `keys`, `message_group`, `priority` and `properties`
    count where the options name none.

    Raises:
        UsageError: a line is not such an object.
    """
    for number, line in enumerate(_lines(source), 1):
        record = _record(line, number)
        fields = fields_of(number)
        made = _filled(outgoing, fields)
        try:
            yield replace(
                made,
                body=_body(record),
                tag=made.tag or str(record.get("tag") or ""),
                keys=made.keys or [str(key) for key in record.get("keys") or []],
                message_group=made.message_group or str(record.get("message_group") or ""),
                priority=_priority(made, record),
                properties={**_texts(record.get("properties") or {}), **made.properties},
            )
        except (TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise UsageError(f"line {number}: {error}") from None


def send_all(client: AdminClient, messages: Iterable[messaging.Outgoing]) -> View:
    """Send messages; return counts.

    Raises:
        CliError: the broker refused one, could not be reached, or the input is wrong; the error
            says how many were sent.
    """
    sent, started_s = Sent(), time.monotonic()
    waiting: deque[tuple[messaging.Sending, int]] = deque()
    try:
        for outgoing in messages:
            limit = 1 if outgoing.message_group else MAX_IN_FLIGHT
            while len(waiting) >= limit:
                _finish(client, waiting, sent)
            waiting.append((messaging.send_soon(client, outgoing), len(outgoing.body)))
            while waiting and waiting[0][0].done():
                _finish(client, waiting, sent)
        while waiting:
            _finish(client, waiting, sent)
    except CliError as error:
        _settle(client, waiting, sent)
        raise CliError(f"{error} (after {sent.messages} messages were sent)", error.code) from None
    except BaseException:
        _settle(client, waiting, sent)
        raise
    took_s = time.monotonic() - started_s
    return {
        "sent": sent.messages,
        "bytes": sent.bytes,
        "duration_ms": round(took_s * 1_000),
        "messages_per_s": round(sent.messages / took_s, 1) if took_s else 0.0,
    }


def _finish(client: AdminClient, waiting: deque[tuple[messaging.Sending, int]], sent: Sent) -> None:
    """Wait for the oldest send.

    Raises:
        CliError: it failed.
    """
    call, size = waiting.popleft()
    messaging.receipt_of(client, call)
    sent.messages += 1
    sent.bytes += size


def _settle(client: AdminClient, waiting: deque[tuple[messaging.Sending, int]], sent: Sent) -> None:
    """Wait for all sends under way: what was read before the end of the command is not lost."""
    while waiting:
        with suppress(CliError):
            _finish(client, waiting, sent)


def _filled(outgoing: messaging.Outgoing, fields: dict[str, str]) -> messaging.Outgoing:
    return replace(
        outgoing,
        tag=filled(outgoing.tag, fields),
        keys=[filled(key, fields) for key in outgoing.keys],
        message_group=filled(outgoing.message_group, fields),
        properties={key: filled(value, fields) for key, value in outgoing.properties.items()},
    )


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise CliError(f"a line has more than {MAX_LINE_BYTES} bytes")
        if text := line.removesuffix(b"\n"):
            yield text


def _record(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise UsageError(f"line {number} is not a JSON object")
    return record


def _body(record: dict[str, Any]) -> bytes:
    if record.get("body") is not None:
        return str(record["body"]).encode()
    if record.get("body_base64"):
        return base64.b64decode(record["body_base64"], validate=True)
    raise ValueError("it has neither body nor body_base64")


def _priority(made: messaging.Outgoing, record: dict[str, Any]) -> int | None:
    priority = record.get("priority")
    return made.priority if made.priority is not None or priority is None else int(priority)


def _texts(properties: dict[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in properties.items()}
