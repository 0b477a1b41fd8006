"""Shares of the streams of a raft group: no client, namespace or broker takes all (rule 34).

A broker counts its own streams; only here those of all brokers meet. Owners that are not named, as
by a broker of an earlier version, have no share of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_runtime.shares import HeldShares, Owner
from strata_storage.base.errors import Refused

_ALL = ("raft group", 0)


class StreamLimits(NamedTuple):
    """How many streams of a raft group may be open.

    Attributes:
        most: of all.
        per_client: of one client.
        per_owner: of one broker, one client address and one namespace.
    """

    most: int
    per_client: int
    per_owner: int


class StreamShares:
    """See the module docstring.

    Args:
        of: what the streams are, in the plural, for refusals.
        limits: of them.
        outcome: of a refusal.
    """

    __slots__ = ("_limits", "_of", "_outcome", "_shares")

    def __init__(self, of: str, limits: StreamLimits, outcome: pb.Outcome.ValueType) -> None:
        self._of = of
        self._limits = {
            "raft group": limits.most,
            "client": limits.per_client,
            **dict.fromkeys(("address", "namespace", "broker"), limits.per_owner),
        }
        self._outcome = outcome
        self._shares = HeldShares(of, self._limits, self._refuse)

    @property
    def used(self) -> int:
        """Streams that are open."""
        return self._shares.held(_ALL)

    @contextmanager
    def holding(self, owner: kv.StreamOwner) -> Iterator[None]:
        """Count a stream until the block ends.

        Raises:
            Refused: there are too many, or too many of one owner.
        """
        owners = _owners(owner)
        self._shares.try_take(owners)
        try:
            yield
        finally:
            self._shares.give_back(owners)

    def _refuse(self, owner: Owner) -> NoReturn:
        kind = owner[0]
        reason = f"{self._limits[kind]} {self._of} of this {kind} are open already"
        raise Refused(self._outcome, reason)


def _owners(owner: kv.StreamOwner) -> list[Owner]:
    named: tuple[Owner, ...] = (
        ("client", owner.client),
        ("address", owner.address),
        ("namespace", owner.namespace),
        ("broker", owner.broker_boot_id),
    )
    return [_ALL, *(each for each in named if each[1])]
