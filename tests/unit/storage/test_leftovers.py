"""The first thing that is asked of an object store, and what is told when it does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import structlog

from strata_storage.tiering.leftovers import sweep_leftovers
from strata_storage.tiering.parts import TieringParts
from strata_testing import ManualClock, until
from strata_tier.objects import DEFAULT_SPACE
from strata_tier.store import StoreUnavailableError


class Counted:
    """A counter of which the labels are noted."""

    def __init__(self) -> None:
        self.added: list[tuple[int, dict[str, str]]] = []

    def add(self, count: int, labels: dict[str, str]) -> None:
        """Count."""
        self.added.append((count, labels))


class Stores:
    """Stores of one store that cannot be reached the first time."""

    name = "s3://bucket"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def of(self, space: str) -> Stores:
        """Return the store of a space."""
        assert space == DEFAULT_SPACE
        return self

    async def remove_leftovers(self, before_ms: int) -> int:
        """Fail once, then remove two."""
        self.asked.append(before_ms)
        if len(self.asked) == 1:
            raise StoreUnavailableError("s3://bucket", "", "connection refused")
        return 2


async def test_a_store_that_cannot_be_reached_is_told_and_asked_again() -> None:
    """One warning says that nothing can be uploaded now, and why."""
    stores, failures, objects = Stores(), Counted(), Counted()
    work: Any = SimpleNamespace(
        clock=ManualClock(),
        options=SimpleNamespace(leftovers_age_ms=86_400_000, leftovers_interval_s=0.001),
        instruments=SimpleNamespace(failures=failures, objects=objects),
    )
    topics = SimpleNamespace(spaces=SimpleNamespace(named=frozenset()))
    parts: Any = SimpleNamespace(place=SimpleNamespace(stores=stores), work=work, topics=topics)
    with structlog.testing.capture_logs() as lines:
        sweep = asyncio.ensure_future(sweep_leftovers(cast(TieringParts, parts)))
        await until(lambda: bool(objects.added))
        sweep.cancel()
    warning = lines[0]
    assert (warning["log_level"], warning["event"]) == (
        "warning",
        "the object store cannot be used",
    )
    assert "connection refused" in warning["reason"]
    assert failures.added == [(1, {"work": "leftovers"})]
    assert objects.added[0] == (2, {"result": "leftover"})
    assert set(stores.asked) == {work.clock.wall_ms() - 86_400_000}
