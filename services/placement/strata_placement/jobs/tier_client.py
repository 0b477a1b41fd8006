"""Calls of one task to the leader of a raft group, through any broker: commits and sweeps.

All of them may be repeated safely. A permanent refusal by a leader is a `SourceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from strata.admin.v1 import admin_pb2
from strata_placement.source.client import BrokerConnection, answer_of, open_channel

_PATIENCE_S = 600.0
# A leader reads an object back before it answers.
_CALL_S = 150.0

Answer = TypeVar("Answer")


class LeaderEndpoints(NamedTuple):
    """Where leaders are reached.

    Attributes:
        endpoints: host:port of brokers; tasks take turns.
        ca_file: certificates (PEM) by which they are known; "": no TLS.
    """

    endpoints: tuple[str, ...]
    ca_file: str = ""

    @classmethod
    def parse(cls, text: str, ca_file: str = "") -> LeaderEndpoints:
        """Read endpoints by comma.

        Raises:
            ValueError: there is none.
        """
        endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
        if not endpoints:
            raise ValueError("an endpoint (host:port of brokers) is needed")
        return cls(endpoints, ca_file)


class TierLeaders(Protocol):
    """The leaders of raft groups, as a task sees them; every call may raise a `SourceError`."""

    def replace(self, raft_group: int, change: bytes) -> int:
        """Commit a written object; return how many ranges it replaced."""

    def plan_sweep(
        self, raft_group: int, old_keys: Sequence[str]
    ) -> admin_pb2.PlanTierSweepResponse:
        """Return what may be deleted."""

    def forget(self, raft_group: int, object_ids: Sequence[int]) -> int:
        """Forget deleted objects; return how many there were."""


class TierClient:
    """`TierLeaders` through a broker; a context manager.

    Args:
        brokers: whom to call.
        number: of the task: tasks spread over the endpoints.
    """

    def __init__(self, brokers: LeaderEndpoints, number: int = 0) -> None:
        self._broker = BrokerConnection(
            brokers.endpoints, number, lambda endpoint: open_channel(endpoint, brokers.ca_file)
        )

    def __enter__(self) -> TierClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.close()

    def replace(self, raft_group: int, change: bytes) -> int:
        """See `TierLeaders.replace`."""
        request = admin_pb2.ReplaceTierRangesRequest(raft_group=raft_group, change=change)
        response = self._repeat(
            lambda timeout_s: self._broker.admin.ReplaceTierRanges(request, timeout=timeout_s)
        )
        return response.replaced_ranges

    def plan_sweep(
        self, raft_group: int, old_keys: Sequence[str]
    ) -> admin_pb2.PlanTierSweepResponse:
        """See `TierLeaders.plan_sweep`."""
        request = admin_pb2.PlanTierSweepRequest(raft_group=raft_group, old_keys=old_keys)
        return self._repeat(
            lambda timeout_s: self._broker.admin.PlanTierSweep(request, timeout=timeout_s)
        )

    def forget(self, raft_group: int, object_ids: Sequence[int]) -> int:
        """See `TierLeaders.forget`."""
        request = admin_pb2.ForgetTierObjectsRequest(raft_group=raft_group, object_ids=object_ids)
        response = self._repeat(
            lambda timeout_s: self._broker.admin.ForgetTierObjects(request, timeout=timeout_s)
        )
        return response.forgotten

    def _repeat(self, call: Callable[[float], Answer]) -> Answer:
        return answer_of(call, _PATIENCE_S, _CALL_S, unreachable=self._broker.go_on)
