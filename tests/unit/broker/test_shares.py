"""One limit and its owners: each holds no more than its share (rule 34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from typing import cast

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.kv.v1 import kv_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.base.shares import (
    ALL_SHARING,
    CallShares,
    Full,
    OwnerShares,
    SharedLimit,
    all_owners_of,
    most_each,
    owners_of,
)
from strata_edge.ports import CallError
from strata_mq.requests import RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import message, resource
from strata_testing.broker.fake_edge import MESSAGING, METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage

NOBODY_LEADS = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER)
OTHER = METADATA | {"x-mq-client-id": "client-2"}
KV = "/strata.kv.v1.KvService/"
SMALL_SHARES = broker_config(
    send={
        "max_bytes_in_flight": 200_000,
        "max_bytes_in_flight_per_client": 60_000,
        "max_bytes_in_flight_per_address": 120_000,
    },
)


@pytest.fixture
def config() -> BrokerConfig:
    """With tables, and one call at a time."""
    return broker_config(
        plugins=["kv"],
        kv={"max_calls_in_flight_per_client": 1},
        calls={"max_in_flight_per_client": 1},
    )


def test_nobody_holds_more_than_its_share() -> None:
    """The full one of a call's two owners decides; a refused call takes nothing."""
    shares = OwnerShares("calls", {"client": 2, "connection": 3}, Metrics.disabled())
    ann, bob = owners_of("ann", "10.0.0.1:1"), owners_of("bob", "10.0.0.1:1")
    assert shares.try_take(ann, 2)
    assert not shares.try_take(ann)
    assert not shares.try_take(bob, 2), "they share the connection"
    assert shares.try_take(bob)
    shares.give_back(ann, 2)
    shares.give_back(bob)
    assert len(shares) == 0


def test_a_client_with_many_addresses_of_one_network_has_one_share() -> None:
    """A host of IPv6 has as many addresses as it likes; one that speaks IPv4 has that address."""
    peers = ("[2001:db8:1:2::9]:80", "[2001:db8:1:2:ffff::1]:4711", "[2001:db8:1:3::9]:80")
    networks = [dict(all_owners_of("a", peer))["address"] for peer in peers]
    assert networks == ["2001:db8:1:2::", "2001:db8:1:2::", "2001:db8:1:3::"]
    assert dict(all_owners_of("a", "[::ffff:10.0.0.1]:80"))["address"] == "10.0.0.1"
    assert dict(all_owners_of("", "10.0.0.1:80")) == {
        "connection": "10.0.0.1:80",
        "address": "10.0.0.1",
    }


def test_calls_and_their_bytes_are_held_until_they_end() -> None:
    """A refused call leaves nothing; many clients and connections share their address."""
    most = most_each(per_client=2, per_address=3)
    assert tuple(most) == ALL_SHARING
    shares = CallShares("calls", most, most_each(100, 150), metrics=Metrics.disabled())
    ann, bob = all_owners_of("ann", "10.0.0.1:1"), all_owners_of("bob", "10.0.0.1:2")
    nameless = all_owners_of("", "10.0.0.1:3")
    assert [kind for kind, _ in nameless] == ["connection", "address"]
    with shares.holding(ann, 90):
        with pytest.raises(RequestError), shares.holding(ann, 11):
            pass
        with shares.holding(bob, 60), pytest.raises(RequestError), shares.holding(nameless, 1):
            pass
        with shares.holding(ann, 10), shares.holding(nameless, 0):
            with pytest.raises(RequestError), shares.holding(ann, 0):
                pass
            with pytest.raises(RequestError), shares.holding(bob, 0):
                pass
    with shares.holding(ann, 100):
        pass


def send(edge: FakeEdge, number: int, metadata: Mapping[str, str], peer: str) -> FakeCall:
    """A send of 10 kB."""
    request = service_pb2.SendMessageRequest(messages=[message("orders", number)])
    request.messages[0].body = bytes(10_000)
    call = FakeCall("SendMessage", request.SerializeToString(), metadata)
    call.peer = peer
    assert edge.hot is not None
    edge.hot.handle([call])
    return call


async def code_of(call: FakeCall) -> definition_pb2.Code.ValueType:
    return service_pb2.SendMessageResponse.FromString((await call.answer)[0]).status.code


@pytest.mark.parametrize("config", [SMALL_SHARES], ids=["small shares"])
@pytest.mark.parametrize("by", ["client", "address"])
async def test_one_client_holds_a_share_of_the_sends(
    edge: FakeEdge, app: BrokerApp, storage: FakeStorage, by: str
) -> None:
    """A flood of one client, or of one address with many client ids, leaves room for others."""
    storage.trouble["Append"].extend([NOBODY_LEADS] * 100_000)
    flood: list[FakeCall] = []
    one_bytes = 0
    for number in range(40):
        client_id, peer = "client-1", "10.0.0.1:5"
        if by == "address":
            client_id, peer = f"client-{number}", f"10.0.0.1:{number}"
        metadata = METADATA | {"x-mq-client-id": client_id}
        flood.append(send(edge, number, metadata, peer))
        one_bytes = one_bytes or app.send_budget.used_bytes
    await asyncio.sleep(0)
    refused = [call for call in flood if call.done()]
    assert refused
    assert {await code_of(call) for call in refused} == {definition_pb2.TOO_MANY_REQUESTS}
    most = 60_000 if by == "client" else 120_000
    # Sends that waited before shares were counted come on top.
    assert most / 2 < app.send_budget.used_bytes <= most + 200_000 / 8 + one_bytes
    modest = send(edge, 41, OTHER | {"x-mq-client-id": "modest"}, "10.0.0.2:6")
    assert not modest.done()
    storage.trouble["Append"].clear()
    assert await code_of(modest) == definition_pb2.OK
    await asyncio.gather(*(call.answer for call in flood))
    assert app.send_budget.used_bytes == 0
    assert len(app.send_budget._shares) == 0
    assert await code_of(send(edge, 42, METADATA, "10.0.0.1:5")) == definition_pb2.OK


class Served:
    """A method of a servicer that waits until it may go on."""

    def __init__(self) -> None:
        self.under_way = 0
        self.go_on = asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self.under_way += 1
        await self.go_on.wait()


def info_of(client_id: str, peer: str) -> FakeCall:
    info = FakeCall("", b"", METADATA | {"x-mq-client-id": client_id})
    info.peer = peer
    return info


async def test_one_client_holds_a_share_of_the_rare_calls(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a client is under way: its second is refused, another client's is served."""
    slow = Served()
    monkeypatch.setattr("strata_broker.clients.route.Routes.route", lambda *_: b"")
    monkeypatch.setattr("strata_broker.clients.provision.Provisioner.topic_for_use", slow)
    request = service_pb2.QueryRouteRequest(topic=resource("orders"))
    request.endpoints.addresses.add(host="127.0.0.1", port=1)
    route = partial(edge.unary[MESSAGING + "QueryRoute"], request.SerializeToString())
    first = asyncio.ensure_future(route(info_of("greedy", "10.0.0.1:5")))
    await until(lambda: slow.under_way == 1)
    refused = await route(info_of("greedy", "10.0.0.1:6"))
    status = service_pb2.QueryRouteResponse.FromString(refused).status
    assert status.code == definition_pb2.TOO_MANY_REQUESTS
    modest = asyncio.ensure_future(route(info_of("modest", "10.0.0.2:6")))
    await until(lambda: slow.under_way == 2)
    slow.go_on.set()
    assert [*await asyncio.gather(first, modest)] == [b"", b""]


async def test_one_client_holds_a_share_of_the_calls_for_tables(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, writes and messages that are writes together, and streams."""
    slow = Served()
    monkeypatch.setattr("strata_broker.kv.tables.Tables.for_write", slow)
    monkeypatch.setattr("strata_broker.kv.tables.Tables.find", lambda *_: None)
    table = kv_pb2.TableName(name="t")
    put = kv_pb2.PutRequest(table=table, key=b"k").SerializeToString()
    get = kv_pb2.GetRequest(table=table, key=b"k").SerializeToString()
    written = asyncio.ensure_future(edge.unary[KV + "Put"](put, info_of("greedy", "10.0.0.1:5")))
    await until(lambda: slow.under_way == 1)
    with pytest.raises(CallError) as refused:
        await edge.unary[KV + "Get"](get, info_of("greedy", "10.0.0.1:6"))
    assert refused.value.status == "RESOURCE_EXHAUSTED"
    assert await edge.unary[KV + "Get"](get, info_of("modest", "10.0.0.2:5")) == b""
    written.cancel()
    await asyncio.wait([written])
    assert await edge.unary[KV + "Get"](get, info_of("greedy", "10.0.0.1:6")) == b""


async def test_one_client_holds_a_share_of_the_exports(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export lasts for as long as its client takes to read it."""

    async def export(*_: object) -> AsyncIterator[kv_pb2.ExportResponse]:
        while True:
            yield kv_pb2.ExportResponse()

    monkeypatch.setattr("strata_broker.kv.tables.Tables.get", lambda *_: None)
    monkeypatch.setattr("strata_broker.kv.streams.Streams.export", export)
    request = kv_pb2.ExportRequest(table=kv_pb2.TableName(name="t")).SerializeToString()

    def begin(info: FakeCall) -> AsyncGenerator[bytes, None]:
        stream = edge.server_streams[KV + "Export"](request, info)
        return cast("AsyncGenerator[bytes, None]", stream)

    open_streams = []
    for client, peer in (
        *[("greedy", "10.0.0.1:5")] * 2,
        ("neighbour", "10.0.0.1:6"),
        ("modest", "10.0.0.2:5"),
    ):
        open_streams.append(begin(info_of(client, peer)))
        assert await anext(open_streams[-1]) == b""
    for client, peer in (("greedy", "10.0.0.3:5"), ("another", "10.0.0.1:7")):
        with pytest.raises(CallError) as refused:
            await anext(begin(info_of(client, peer)))
        assert refused.value.status == "RESOURCE_EXHAUSTED"
    await open_streams[0].aclose()
    for _ in range(20):
        # The generators behind it end in turns of the loop.
        await asyncio.sleep(0)
    again = begin(info_of("greedy", "10.0.0.3:5"))
    assert await anext(again) == b""
    for stream in (*open_streams, again):
        await stream.aclose()


def test_a_shared_limit_says_which_part_of_it_is_full() -> None:
    """Nothing is taken then, of neither; what is given back has room again."""
    metrics = Metrics.disabled()
    shares = OwnerShares("calls", {"client": 2}, metrics)
    limit = SharedLimit(Limit("calls", 3, "calls", metrics=metrics), shares)
    one, other = (("client", "a"),), (("client", "b"),)
    texts = {Full.SHARE: "this client", Full.ALL: "all"}
    with limit.holding(one, 2, texts):
        assert limit.try_take(one) is Full.SHARE
        with pytest.raises(RequestError, match="this client"), limit.holding(one, 1, texts):
            pass
        assert limit.try_take(other) is None
        assert limit.try_take(other) is Full.ALL
        with pytest.raises(RequestError, match="all"), limit.holding(other, 1, texts):
            pass
        assert limit.used == 3
        limit.give_back(other)
        with pytest.raises(ZeroDivisionError), limit.holding(other, 1, texts):
            raise ZeroDivisionError
    assert (limit.used, len(shares)) == (0, 0)
