"""How long the lite topics of a parent topic live: an attribute of the parent sets it."""

from __future__ import annotations

from collections.abc import Mapping

LIFETIME_ATTRIBUTE = "lite.topic.expiration"
"""RocketMQ's name of the attribute: minutes without a message; -1: without end."""

_MINUTE_MS = 60_000
_MAX_MINUTES = 100 * 365 * 1_440


def lifetime_ms_of(attributes: Mapping[str, str]) -> int | None:
    """Return how long lite topics live without a message; None: as long as their parent.

    Raises:
        ValueError: the attribute is no number of minutes.
    """
    text = attributes.get(LIFETIME_ATTRIBUTE, "").strip()
    if not text:
        return None
    try:
        minutes = int(text)
    except ValueError:
        minutes = 0
    if minutes == -1:
        return None
    if not 1 <= minutes <= _MAX_MINUTES:
        raise ValueError(
            f"{LIFETIME_ATTRIBUTE} {text!r} is neither -1 nor a number of minutes, 1 to "
            f"{_MAX_MINUTES}"
        )
    return minutes * _MINUTE_MS


def stored_lifetime_ms(attributes: Mapping[str, str]) -> int | None:
    """Return the same of a stored topic; what cannot be read means no end."""
    try:
        return lifetime_ms_of(attributes)
    except ValueError:
        return None
