"""Leases that pops took, by their attempts: a broker whose answer was lost asks for them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from strata.storage.v1 import storage_pb2

LeaseKey = tuple[int, int, int, int]


class FakeTaken:
    """The leases that pops took, of a storage node in memory."""

    def __init__(self) -> None:
        self._taken: dict[int, list[tuple[LeaseKey, storage_pb2.LeasedMessage]]] = defaultdict(list)

    def add(self, attempt: int, key: LeaseKey, leased: storage_pb2.LeasedMessage) -> None:
        """Note a lease of a pop."""
        if attempt:
            self._taken[attempt].append((key, leased))

    def again(
        self,
        request: storage_pb2.PopRequest,
        leases: Mapping[LeaseKey, int],
        response: storage_pb2.PopResponse,
    ) -> bool:
        """Add what an earlier pop took and still holds; return whether that is all."""
        if request.repeated:
            for key, leased in self._taken[request.attempt]:
                if key[0] == request.consumer_group_id and leases.get(key) == leased.lease_number:
                    response.messages.append(leased)
        return bool(response.messages) or request.taken_only
