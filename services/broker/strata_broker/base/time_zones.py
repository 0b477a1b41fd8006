"""Zones in which clients may write the date that they sign: names in configuration, offsets now.

Clients that write local time call it UTC, so a broker can only try the zones that it is told of.
Each further zone is a further time at which a copied header is good.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

LOCAL = "local"
"""The zone of the machine that the broker runs on."""

ANY = "any"
"""Every zone of the world."""

# From UTC-12 to UTC+14.
_WORLD_MS = (-12 * 3_600_000, 14 * 3_600_000)
_OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)")

Range = tuple[int, int]
"""First and last offset from UTC, in milliseconds."""


class TimeZones:
    """Offsets of configured zones.

    Args:
        names: as `check_zone` takes them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        self._takes_any = ANY in names
        self._moments = [_moment_in(name) for name in names if name != ANY]

    def ranges_ms(self, now_ms: int, skew_ms: int) -> tuple[Range, ...]:
        """Return the offsets that a date may have that was written about now.

        Args:
            now_ms: wall time.
            skew_ms: how long ago, or ahead, it may have been written: an offset changes twice a
                year in many zones.
        """
        if self._takes_any:
            return (_WORLD_MS,)
        offsets = {
            _offset_ms(moment_of((now_ms + shift_ms) / 1000))
            for moment_of in self._moments
            for shift_ms in (-skew_ms, 0, skew_ms)
        }
        return tuple((offset_ms, offset_ms) for offset_ms in sorted(offsets))


def check_zone(name: str) -> str:
    """Return the name of a zone: UTC, local, any, an offset such as +08:00, or Asia/Shanghai.

    Raises:
        ValueError: no such zone is known on this machine.
    """
    if name not in (LOCAL, ANY):
        _zone(name)
    return name


def _moment_in(name: str) -> Callable[[float], datetime]:
    """Return what gives a time, in seconds since 1970, in a zone."""
    if name == LOCAL:
        return lambda seconds: datetime.fromtimestamp(seconds, UTC).astimezone()
    zone = _zone(name)
    return lambda seconds: datetime.fromtimestamp(seconds, zone)


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return UTC
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes = found.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        if offset < timedelta(hours=24):
            return timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is no time zone; write UTC, local, any, an offset such as +08:00, or a name "
            "such as Asia/Shanghai that this machine knows"
        ) from None


def _offset_ms(moment: datetime) -> int:
    offset = moment.utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)
