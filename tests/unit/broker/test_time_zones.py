"""Zones of the dates that clients sign."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.time_zones import TimeZones

HOUR_MS = 3_600_000
SUMMER_MS, WINTER_MS = (
    round(datetime(2026, month, 15, tzinfo=UTC).timestamp() * 1000) for month in (7, 1)
)
# At one in the morning, UTC, clocks in Berlin go from two to three.
CHANGE_MS = round(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine nine hours ahead of UTC."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "hours"), [("UTC", 0), ("utc", 0), ("+08:00", 8), ("-03:30", -3.5), ("+00:00", 0)]
)
def test_a_zone_is_an_offset(name: str, hours: float) -> None:
    offset_ms = round(hours * HOUR_MS)
    assert TimeZones([name]).ranges_ms(SUMMER_MS, 900_000) == ((offset_ms, offset_ms),)


def test_the_machines_own_zone_is_taken_by_default(tokyo: None) -> None:
    """Beside UTC: clients on machines like the broker's need no configuration."""
    zones = TimeZones(AccessControlSection().time_zones)
    assert zones.ranges_ms(SUMMER_MS, 900_000) == ((0, 0), (9 * HOUR_MS, 9 * HOUR_MS))


def test_zones_of_the_same_offset_are_one(tokyo: None) -> None:
    assert TimeZones(["local", "+09:00"]).ranges_ms(SUMMER_MS, 0) == ((9 * HOUR_MS,) * 2,)


def test_any_is_the_world() -> None:
    zones = TimeZones(["UTC", "any"])
    assert zones.ranges_ms(SUMMER_MS, 900_000) == ((-12 * HOUR_MS, 14 * HOUR_MS),)


def test_a_zone_with_summer_time_has_two_offsets_while_it_changes() -> None:
    """A header that was written a minute before the change is good a minute after it."""
    zones = TimeZones(["Europe/Berlin"])
    one, two = (HOUR_MS, HOUR_MS), (2 * HOUR_MS, 2 * HOUR_MS)
    assert zones.ranges_ms(WINTER_MS, 900_000) == (one,)
    assert zones.ranges_ms(SUMMER_MS, 900_000) == (two,)
    assert zones.ranges_ms(CHANGE_MS + 60_000, 900_000) == (one, two)
    assert zones.ranges_ms(CHANGE_MS + 60_000, 0) == (two,)


def test_zones_are_a_text_in_the_environment() -> None:
    section = AccessControlSection.model_validate({"time_zones": "UTC, +08:00"})
    assert section.time_zones == ("UTC", "+08:00")


@pytest.mark.parametrize("name", ["", "Nowhere/City", "+25:00", "8", "../../etc/passwd", "/etc"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is no time zone; write UTC, local, any"):
        AccessControlSection(time_zones=(name,))
