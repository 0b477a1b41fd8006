"""Values as people read them: points in time, durations, sizes, lists, text that is safe to print.

Only the readable form is made here; what `-o json` prints stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# A number of milliseconds above it is a point in time (since 1973), below it a duration.
_FIRST_TIME_MS = 100_000_000_000
_LAST_TIME_MS = 253_402_300_799_000
_TIME_KEYS = ("_at_ms", "_time_ms", "_since_ms", "time_ms", "last_heartbeat_ms", "next_check_ms")
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_SIZES = ("KiB", "MiB", "GiB", "TiB")


def label(key: str) -> str:
    """Return the label of a value without its unit, which is shown with the value."""
    return key.removesuffix("_ms").removesuffix("_bytes") or key


def readable(key: str, value: Any) -> str:
    """Return a value as text without control characters, by what its key says it is."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("_ms"):
        return _milliseconds(key, value)
    if isinstance(value, int) and key.endswith("_bytes"):
        return size(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        pairs = (f"{label(name)}={readable(name, each)}" for name, each in value.items())
        return ", ".join(pairs) or "-"
    if isinstance(value, list):
        apart = "; " if any(isinstance(each, Mapping) for each in value) else ", "
        return apart.join(readable(key, each) for each in value) or "-"
    return printable(str(value))


def topic_name(qualified: str) -> str:
    """Return NAMESPACE%NAME as people write it: in the default namespace the name alone."""
    return qualified.removeprefix("%")


def printable(text: str) -> str:
    """Return a text that cannot move a terminal's cursor: control characters become escapes."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def size(count: int) -> str:
    """Return a number of bytes with the unit that makes it short."""
    if abs(count) < 1_024:
        return f"{count} B"
    power = min((abs(count).bit_length() - 1) // 10, len(_SIZES))
    return f"{count / 1_024**power:.1f} {_SIZES[power - 1]}"


def _milliseconds(key: str, value: int) -> str:
    if _FIRST_TIME_MS < value <= _LAST_TIME_MS:
        moment = datetime.fromtimestamp(value / 1_000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if value == 0 and key.endswith(_TIME_KEYS):
        return "-"
    for unit, length in _UNITS:
        if value and value % length == 0:
            return f"{value // length}{unit}"
    return f"{value}ms" if value < 10_000 else f"{value / 1_000:g}s"
