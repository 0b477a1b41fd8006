"""One limit and its owners: each holds no more than its share (rule 34)."""

from __future__ import annotations

from strata_broker.base.shares import OwnerShares, owners_of
from strata_runtime.metrics import Metrics


def test_nobody_holds_more_than_its_share() -> None:
    """Of two owners of a call the one that is full decides; a refused call takes nothing."""
    shares = OwnerShares("calls", {"client": 2, "connection": 3}, Metrics.disabled())
    ann, bob = owners_of("ann", "10.0.0.1:1"), owners_of("bob", "10.0.0.1:1")
    assert shares.try_take(ann, 2)
    assert not shares.try_take(ann)
    assert not shares.try_take(bob, 2), "they share the connection"
    assert shares.try_take(bob)
    shares.give_back(ann, 2)
    shares.give_back(bob)
    assert len(shares) == 0
