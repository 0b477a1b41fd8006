"""Messages that a receive leaves out, and requests that no client should send, at their ends."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.metadata.requests import Caller
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.broker import waiting_receives
from strata_testing.broker.client import Client, receive_request, received
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.popping import waits_of


@pytest.mark.parametrize("kind", [definition_pb2.FILTER_TYPE_UNSPECIFIED, 77])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [("*", storage_pb2.FILTER_KIND_ALL), ("", storage_pb2.FILTER_KIND_ALL),
     ("a || b", storage_pb2.FILTER_KIND_TAG)],
)  # fmt: skip
async def test_a_filter_without_a_type_is_one_of_tags(
    client: Client,
    storage: FakeStorage,
    kind: definition_pb2.FilterType.ValueType,
    expression: str,
    expected: storage_pb2.FilterKind.ValueType,
) -> None:
    """Old Go clients send none, and none of the messages is kept from them."""
    request = receive_request("orders", "g", polling_s=0)
    request.filter_expression.type = kind
    request.filter_expression.expression = expression
    status, _ = received(await client.edge.begin("ReceiveMessage", request).answer)
    assert status.code == definition_pb2.MESSAGE_NOT_FOUND
    pop, _ = [request for rpc, request in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    assert pop.filter.kind == expected


@pytest.mark.parametrize(
    ("left_s", "request_timeout_s", "wait_ms"),
    [
        (18.0, 3, 16_500),
        (18.0, 10, 13_000),
        (18.0, None, 16_500),
        (18.0, 10**9, 16_500),
        (6.0, 3, 5_000),
        (99_999_999 * 3_600.0, 3, 20_000),
        (None, 3, 20_000),
        (3.0, 3, 2_900),
    ],
)
@pytest.mark.parametrize("config", [broker_config(receive={"min_polling_ms": 5_000})])
async def test_a_receive_that_says_no_wait_leaves_half_a_request_timeout(
    edge: FakeEdge,
    client: Client,
    app: BrokerApp,
    monkeypatch: pytest.MonkeyPatch,
    left_s: float | None,
    request_timeout_s: int | None,
    wait_ms: int,
) -> None:
    """RocketMQ's rule, within 5 to 20 s; what settings say holds, else 3 s."""
    if request_timeout_s is not None:
        settings = definition_pb2.Settings()
        settings.request_timeout.seconds = request_timeout_s
        app.sessions.described(Caller("client-1", ""), settings, 0)
    request = receive_request("orders", "g")
    request.ClearField("long_polling_timeout")
    waits = waits_of(monkeypatch)
    await edge.begin("ReceiveMessage", request, time_left_s=left_s).answer
    (waited_ms,) = waits
    assert wait_ms - 1_000 < waited_ms <= wait_ms


async def test_a_receive_that_waits_takes_little_memory(client: Client, app: BrokerApp) -> None:
    """Ten thousand of them stay below 100 MB with what the edge keeps (`bench/waits.py`)."""
    first = [client.begin_receive("orders", "g", polling_s=20) for _ in range(10)]
    await until(lambda: waiting_receives(app) == len(first))
    gc.collect()
    tracemalloc.start()
    others = [client.begin_receive("orders", "g", polling_s=20) for _ in range(200)]
    await until(lambda: waiting_receives(app) == len(first) + len(others))
    gc.collect()
    taken = tracemalloc.take_snapshot()
    tracemalloc.stop()
    of_calls = [
        trace.size for trace in taken.traces if "strata_testing" not in trace.traceback[0].filename
    ]
    assert sum(of_calls) / len(others) < 6_000
    for call in (*first, *others):
        call.leave()
