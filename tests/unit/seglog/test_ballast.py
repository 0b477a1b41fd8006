"""The ballast file of rule 11."""

from __future__ import annotations

from strata_seglog.ballast import Ballast
from strata_testing.simulated_disk import SimulatedDisk


def test_the_ballast_is_taken_and_given_back() -> None:
    """Rule 11: released room can be used, and is taken again only when there is enough."""
    disk = SimulatedDisk(capacity_bytes=10_000)
    ballast = Ballast(disk, 6_000)
    assert not ballast.is_held()
    assert ballast.restore()
    assert ballast.is_held()
    assert disk.space().free_bytes == 4_000
    ballast.release()
    assert disk.space().free_bytes == 10_000
    disk.open("other", create=True).allocate(5_000)
    assert not ballast.restore()
    disk.delete("other")
    assert not ballast.restore(margin_bytes=5_000)
    assert ballast.restore(margin_bytes=4_000)
