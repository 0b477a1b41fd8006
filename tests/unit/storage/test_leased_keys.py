"""Names that a sweep may be deleting are kept free for as long as it may, and no longer."""

from __future__ import annotations

import pytest

from strata_storage.base.errors import Refused
from strata_storage.tiering.leased_keys import LeasedKeys
from strata_storage.tiering.options import OutsideOptions
from strata_testing import ManualClock
from strata_tier.base.errors import TierError

OPTIONS = OutsideOptions(lease_ms=10_000, leased_keys_max=3)


def test_a_name_is_free_again_when_the_time_is_over() -> None:
    """Told once more it is kept for the whole time once more."""
    clock = ManualClock()
    keys = LeasedKeys(clock, OPTIONS)
    keys.check_free("a.set")
    keys.lease(["a.set", "b.set"])
    clock.advance(6)
    keys.lease(["a.set"])
    clock.advance(6)
    assert (keys.holds("a.set"), keys.holds("b.set")) == (True, False)
    with pytest.raises(TierError, match=r"a\.set is being deleted"):
        keys.check_free("a.set")
    clock.advance(6)
    keys.check_free("a.set")


def test_there_is_a_limit() -> None:
    """More are refused, all of them; there is room when the time of others is over."""
    clock = ManualClock()
    keys = LeasedKeys(clock, OPTIONS)
    keys.lease(["a.set", "b.set"])
    keys.lease(["a.set", "b.set", "c.set"])
    with pytest.raises(Refused, match="at once"):
        keys.lease(["d.set"])
    assert (len(keys), keys.holds("d.set")) == (3, False)
    clock.advance(11)
    keys.lease(["d.set"])
    assert len(keys) == 1


def test_what_an_earlier_leader_told_holds_as_long_as_if_told_now() -> None:
    """A sweep may have been told right before the term began."""
    clock = ManualClock()
    keys = LeasedKeys(clock, OPTIONS)
    assert keys.may_be_inherited()
    clock.advance(9)
    assert keys.may_be_inherited()
    clock.advance(1)
    assert not keys.may_be_inherited()
