"""Shares of the streams that tell changes of tables: no one takes all of a raft group (rule 34)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.kv.options import KvOptions
from strata_storage.kv.shares import StreamLimits, StreamShares


def shares_of(limits: StreamLimits) -> StreamShares:
    return StreamShares("watches", limits, pb.OUTCOME_TOO_MANY_WAITERS)


def open_all(held: ExitStack, shares: StreamShares, owners: list[kv.StreamOwner]) -> str:
    """Open streams until one is refused; return why."""
    for owner in owners:
        try:
            held.enter_context(shares.holding(owner))
        except Refused as refused:
            assert refused.outcome == pb.OUTCOME_TOO_MANY_WAITERS
            return refused.reason
    return ""


@pytest.mark.parametrize("kind", ["client", "address", "namespace", "broker_boot_id"])
def test_others_find_room_beside_an_owner_that_opens_all_it_can(kind: str) -> None:
    """Its streams may have another name in everything else, and come through many brokers."""
    shares = shares_of(KvOptions().followers)
    most = KvOptions().followers.most
    with ExitStack() as held:
        greedy = [
            kv.StreamOwner(**{kind: 7, "client" if kind != "client" else "address": 1_000 + number})
            for number in range(most)
        ]
        assert "of this" in open_all(held, shares, greedy)
        others = [kv.StreamOwner(client=8, address=8, namespace=8, broker_boot_id=8)] * 100
        assert open_all(held, shares, others) == ""
    assert shares.used == 0


def test_a_share_is_free_again_when_its_streams_end() -> None:
    """Each stream once; one that is refused holds nothing."""
    shares = shares_of(StreamLimits(most=10, per_client=1, per_owner=2))
    first = kv.StreamOwner(client=1, namespace=5)
    for _ in range(3):
        with shares.holding(first):
            with pytest.raises(Refused, match="of this client"), shares.holding(first):
                pass
            with (
                shares.holding(kv.StreamOwner(client=2, namespace=5)),
                pytest.raises(Refused, match="of this namespace"),
                shares.holding(kv.StreamOwner(client=3, namespace=5)),
            ):
                pass
            assert shares.used == 1
    assert shares.used == 0


def test_streams_of_unknown_owners_have_the_limit_of_all() -> None:
    """A broker of an earlier version names nobody."""
    shares = shares_of(StreamLimits(most=5, per_client=1, per_owner=2))
    with ExitStack() as held:
        nobody = [kv.StreamOwner()] * 9
        assert open_all(held, shares, nobody) == "5 watches of this raft group are open already"
