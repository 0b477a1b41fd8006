"""Shares of the streams of a raft group: no client, namespace or broker takes all (rule 34).

A broker counts its own streams; only here those of all brokers meet. Owners that are not named, as
by a broker of an earlier version, have no share of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from strata.kv.v1 import kv_storage_pb2 as kv
from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused

_CLIENT = "client"


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

    Attributes:
        used: streams that are open.
    """

    __slots__ = ("_held", "_limits", "_of", "_outcome", "used")

    def __init__(self, of: str, limits: StreamLimits, outcome: pb.Outcome.ValueType) -> None:
        self._of = of
        self._limits = limits
        self._outcome = outcome
        self.used = 0
        # Only owners of open streams.
        self._held: dict[tuple[str, int], int] = {}

    @contextmanager
    def holding(self, owner: kv.StreamOwner) -> Iterator[None]:
        """Count a stream until the block ends.

        Raises:
            Refused: there are too many, or too many of one owner.
        """
        limits, held = self._limits, self._held
        if self.used >= limits.most:
            raise Refused(self._outcome, f"{limits.most} {self._of} are open already")
        owners = [(kind, name) for kind, name in _owners(owner) if name]
        for kind, name in owners:
            most = limits.per_client if kind == _CLIENT else limits.per_owner
            if held.get((kind, name), 0) >= most:
                reason = f"{most} {self._of} of this {kind} are open already"
                raise Refused(self._outcome, reason)
        self.used += 1
        for each in owners:
            held[each] = held.get(each, 0) + 1
        try:
            yield
        finally:
            self.used -= 1
            for each in owners:
                held[each] -= 1
                if not held[each]:
                    del held[each]


def _owners(owner: kv.StreamOwner) -> tuple[tuple[str, int], ...]:
    return (
        (_CLIENT, owner.client),
        ("address", owner.address),
        ("namespace", owner.namespace),
        ("broker", owner.broker_boot_id),
    )
