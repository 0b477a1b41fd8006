"""Reports of transaction checks: which arrive, and what is counted of the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from google.protobuf.message import Message

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.base.metrics import METRICS
from strata_broker.sends.given_checks import GivenChecks
from strata_broker.storage_client.channels import NodeChannels
from strata_runtime.metrics import Metrics
from strata_testing import until


class Nodes:
    """Storage nodes: `gone` is not registered, `down` does not answer."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[int]]] = []

    def to(self, node_id: str) -> Any:
        if node_id == "gone":
            raise AngeliaError(UNAVAILABLE, "node gone is not registered")
        return _Node(self, node_id)


class _Node:
    def __init__(self, nodes: Nodes, node_id: str) -> None:
        self._nodes = nodes
        self._node_id = node_id

    async def call(self, rpc: str, request: Message, *_: object, timeout_s: float) -> Message:
        if self._node_id == "down":
            raise AngeliaError(UNAVAILABLE, "down")
        checks = cast("storage_pb2.ReportChecksRequest", request).checks
        self._nodes.heard.append((self._node_id, [each.check_count for each in checks]))
        return storage_pb2.ReportChecksResponse()


def check(number: int, *, wants_report: bool = True) -> storage_pb2.TransactionCheck:
    return storage_pb2.TransactionCheck(raft_group=1, check_count=number, wants_report=wants_report)


async def test_what_no_node_heard_is_counted_and_disturbs_no_other() -> None:
    """Too many for one report, a node that is gone, and one that does not answer."""
    metrics = Metrics()
    metrics.declare(METRICS)
    nodes = Nodes()
    given = GivenChecks(cast("NodeChannels", nodes), max_waiting=2, timeout_s=1.0, metrics=metrics)
    for number in (1, 2, 3):
        given.given("up", check(number))
    given.given("up", check(9, wants_report=False))
    given.given("gone", check(1))
    given.given("down", check(1))
    running = asyncio.ensure_future(given.run())
    await until(lambda: nodes.heard)
    given.given("up", check(4))
    await until(lambda: len(nodes.heard) == 2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert nodes.heard == [("up", [2, 3]), ("up", [4])]
    counter = metrics.counter("strata_broker_transaction_checks_total")
    assert counter.value({"result": "not reported"}) == 3
