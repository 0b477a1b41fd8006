"""Signatures of requests as the official SDKs make them: MQv2-HMAC-SHA1 over the date header.

The signature covers the header `x-mq-date-time` alone, so a captured header can be used again until
its date is too old: TLS keeps headers from being captured, the clock window bounds the rest. Java,
Python and Go clients write local time with a literal Z (a protocol fact), so a window has the
offsets of the zones that clients may be in.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from binascii import unhexlify
from datetime import UTC, datetime
from typing import NamedTuple

_SCHEME = "MQv2-HMAC-SHA1"
_DATE_FORM = "%Y%m%dT%H%M%SZ"
_MAX_HEADER_LENGTH = 1024
# A date has at most 35 characters, with nanoseconds and an offset.
_MAX_DATE_LENGTH = 40


class SignedHeader(NamedTuple):
    """Content of an `authorization` header; an empty access key means that nobody signed."""

    access_key: str
    signature: bytes


class ClockWindow(NamedTuple):
    """How far a date may be from the broker's clock.

    Attributes:
        skew_ms: to either side.
        zones_ms: ranges of offsets from UTC that a date without an offset may have. A header is
            good once for each of them.
    """

    skew_ms: int
    zones_ms: tuple[tuple[int, int], ...] = ((0, 0),)

    def holds(self, date: str, now_ms: int) -> bool:
        """Whether a date header is recent: YYYYMMDDTHHMMSSZ, or RFC 3339 (Rust's client)."""
        return self.until_ms(date, now_ms) is not None

    def until_ms(self, date: str, now_ms: int) -> int | None:
        """Return the last time at which a date header is recent; None: it is not recent now."""
        read = _read_date(date)
        if read is None:
            return None
        written_ms, has_offset = read
        ends_ms = [
            written_ms - first_ms + self.skew_ms
            for first_ms, last_ms in (((0, 0),) if has_offset else self.zones_ms)
            if first_ms - self.skew_ms <= written_ms - now_ms <= last_ms + self.skew_ms
        ]
        return max(ends_ms, default=None)


def parse_authorization(text: str) -> SignedHeader | None:
    """Read an `authorization` header; None: it is none of MQv2-HMAC-SHA1.

    Args:
        text: `MQv2-HMAC-SHA1 Credential=AK[/region/service], SignedHeaders=x-mq-date-time,
            Signature=HEX`.
    """
    scheme, _, rest = text.strip().partition(" ")
    if scheme != _SCHEME or len(text) > _MAX_HEADER_LENGTH:
        return None
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    access_key = fields.get("Credential", "").partition("/")[0]
    if not access_key:
        return SignedHeader("", b"")
    try:
        return SignedHeader(access_key, unhexlify(fields.get("Signature", "")))
    except ValueError:
        return None


def date_of(moment: datetime) -> str:
    """Return the text of a date header."""
    return moment.astimezone(UTC).strftime(_DATE_FORM)


def sign(access_key: str, secret_key: str, date: str) -> str:
    """Return the `authorization` header for a date header."""
    signature = hmac.digest(secret_key.encode(), date.encode(), "sha1").hex().upper()
    return f"{_SCHEME} Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"


def signature_is_right(secret_key: str, date: str, signature: bytes) -> bool:
    """Whether a signature is of this secret and date; takes the same time for any wrong one."""
    wanted = hmac.digest(secret_key.encode(), date.encode(), "sha1")
    return hmac.compare_digest(wanted, signature)


def content_signature_is_right(secret_key: str, content: bytes, signature: str) -> bool:
    """Whether a signature of ACL 1.0 is of this secret and content, whatever its date.

    Clients of the remoting protocol sign each request so, also for ACL 2.0.

    Args:
        secret_key: of the user.
        content: all that is signed.
        signature: base64 of HMAC-SHA1.
    """
    wanted = b64encode(hmac.digest(secret_key.encode(), content, "sha1"))
    return hmac.compare_digest(wanted, signature.encode(errors="replace"))


def _read_date(date: str) -> tuple[int, bool] | None:
    """Return the time of a date as if it were UTC, and whether it says its offset itself."""
    if len(date) > _MAX_DATE_LENGTH:
        return None
    try:
        digits = date[:8] + date[9:15]
        if len(date) == 16 and date[8] == "T" and date[15] == "Z":
            written_ms = _milliseconds_of(digits)
            return None if written_ms is None else (written_ms, False)
        moment = datetime.fromisoformat(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return round(moment.timestamp() * 1000), True


def _milliseconds_of(digits: str) -> int | None:
    """Return the time of YYYYMMDDHHMMSS; `strptime` would take longer than the whole check."""
    if not (digits.isascii() and digits.isdecimal()):
        return None
    month, day, hour, minute, second = (int(digits[at : at + 2]) for at in range(4, 14, 2))
    written = datetime(int(digits[:4]), month, day, hour, minute, second, tzinfo=UTC)
    return round(written.timestamp() * 1000)
