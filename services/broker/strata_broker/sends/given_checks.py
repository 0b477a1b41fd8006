"""Reports to storage nodes the transaction checks that a producer was given, so that they count.

A node that gets no report asks once more: a check that no producer saw never counts. Reports are
sent once and at once; those that come while others are under way follow together.
"""

from __future__ import annotations

import asyncio
from collections import deque

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.storage_client import SERVICE
from strata_runtime.metrics import Metrics

_REPORT_CHECKS = SERVICE + "ReportChecks"


class GivenChecks:
    """See the module docstring. Used on the event loop only.

    Args:
        channels: to storage nodes.
        max_waiting: reports that wait for each node; the oldest are dropped.
        timeout_s: of one report.
        metrics: where checks are counted whose report did not arrive.
    """

    def __init__(
        self, channels: NodeChannels, *, max_waiting: int, timeout_s: float, metrics: Metrics
    ) -> None:
        self._channels = channels
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        # Only nodes with a report that waits.
        self._waiting: dict[str, deque[storage_pb2.GivenCheck]] = {}
        self._wake = asyncio.Event()
        self._checks = metrics.counter("strata_broker_transaction_checks_total")

    def given(self, node_id: str, check: storage_pb2.TransactionCheck) -> None:
        """Take in that a producer was given a check of a node."""
        if not check.wants_report:
            return
        given = storage_pb2.GivenCheck(
            raft_group=check.raft_group, pending=check.pending, check_count=check.check_count
        )
        of_node = self._waiting.setdefault(node_id, deque())
        if len(of_node) >= self._max_waiting:
            of_node.popleft()
            self._not_reported(1)
        of_node.append(given)
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, {}
            # As many calls as there are storage nodes; each ends within its timeout.
            async with asyncio.TaskGroup() as calls:
                for node_id, given in waiting.items():
                    calls.create_task(self._report(node_id, given))

    async def _report(self, node_id: str, given: deque[storage_pb2.GivenCheck]) -> None:
        try:
            await self._channels.to(node_id).call(
                _REPORT_CHECKS,
                storage_pb2.ReportChecksRequest(checks=given),
                storage_pb2.ReportChecksResponse,
                timeout_s=self._timeout_s,
            )
        except AngeliaError:
            # The node asks once more.
            self._not_reported(len(given))

    def _not_reported(self, count: int) -> None:
        self._checks.add(count, {"result": "not reported"})
