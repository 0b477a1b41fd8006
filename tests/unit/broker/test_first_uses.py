"""Calls make things by naming them: at a pace, and so many at once, for each who may do it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NoReturn

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.kv.v1 import kv_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.base.config import BrokerConfig
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.kv.tables import Tables
from strata_broker.metadata import first_uses
from strata_broker.metadata.first_uses import FirstUses
from strata_broker.metadata.metadata import MetadataView
from strata_edge.ports import CallError
from strata_mq.requests import Code, RequestError
from strata_mq.requests.names import REDRIVE_GROUP
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import METADATA, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta

KV = "/strata.kv.v1.KvService/"
RATE = "metadata.auto_creations_per_s"


def use(client: str, peer: str = "10.0.0.1:5") -> FirstUse:
    return FirstUse(Audited(peer=peer, client_id=client), "ReceiveMessage")


class Flood:
    """Makes one name after another, each at once."""

    def __init__(self, config: MetadataSection | None = None) -> None:
        self.clock = ManualClock()
        self.limits = FirstUses(
            MetadataView(),
            config or MetadataSection(),
            clock=self.clock,
            metrics=Metrics.disabled(),
        )
        self.refusals: Counter[str] = Counter()

    def make(self, count: int, namespace: str, by: FirstUse) -> int:
        """Try so many creations; return how many were admitted."""
        made = 0
        for _ in range(count):
            try:
                sharers = self.limits.begin("consumer groups", namespace, by)
            except RequestError as refused:
                assert refused.code is Code.TOO_MANY_REQUESTS
                self.refusals[refused.text] += 1
            else:
                self.limits.end(sharers)
                made += 1
        return made


def test_one_client_that_names_many_namespaces_has_its_pace() -> None:
    """It chooses namespaces as freely as the names in them."""
    flood = Flood()
    made = sum(flood.make(1, f"ns{number}", use("greedy")) for number in range(2_000))
    assert made == 5 * 30
    text = f"too many consumer groups are being created by this client ({RATE}_per_client)"
    assert flood.refusals == {text: 2_000 - made}
    assert flood.make(1, "shop", use("modest")) == 1
    flood.clock.advance(10)
    assert flood.make(200, "shop", use("greedy")) == 5 * 10


def test_one_address_with_many_clients_has_its_pace() -> None:
    """Clients choose their ids; another address and another namespace are left alone."""
    flood = Flood()
    made = sum(
        flood.make(1, f"ns{number}", use(f"client-{number}", f"10.0.0.1:{number}"))
        for number in range(2_000)
    )
    assert made == 10 * 30
    text = f"too many consumer groups are being created from this address ({RATE}_per_address)"
    assert flood.refusals == {text: 2_000 - made}
    assert flood.make(1, "ns1", use("client-1", "10.0.0.2:7")) == 1


def test_a_flood_in_one_namespace_leaves_room_for_others() -> None:
    """From many addresses; together they have the pace of the broker, whatever they name."""
    flood = Flood()
    made = sum(
        flood.make(1, "busy", use(f"client-{number}", f"10.0.{number}.1:5"))
        for number in range(1_000)
    )
    assert made == 20 * 30
    in_namespace = (
        f"too many consumer groups are being created in this namespace ({RATE}_per_namespace)"
    )
    assert flood.refusals == {in_namespace: 1_000 - made}
    assert flood.make(1, "calm", use("modest", "10.1.0.1:5")) == 1
    made += 1 + sum(
        flood.make(1, f"ns{number}", use(f"client-{number}", f"10.2.{number}.1:5"))
        for number in range(1_000)
    )
    assert made == 40 * 30
    by_broker = f"too many consumer groups are being created by this broker ({RATE})"
    assert flood.refusals.keys() == {in_namespace, by_broker}


def test_names_that_are_refused_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor more of the others than the limit; the one that was idle longest goes."""
    flood = Flood()
    flood.make(150, "ns", use("greedy"))
    known = len(flood.limits)
    for number in range(1_000):
        flood.make(1, f"ns{number}", use("greedy"))
    assert len(flood.limits) == known == 3
    monkeypatch.setattr(first_uses, "_MAX_REMEMBERED", 5)
    for number in range(40):
        flood.make(1, f"ns{number}", use(f"client-{number}", f"10.0.{number}.1:5"))
    assert len(flood.limits) == 3 * 5


def test_creations_under_way_have_shares() -> None:
    """While the nameserver is slow, one client holds a part of the room, an address more."""
    config = MetadataSection(
        max_creations_in_flight=6,
        max_creations_in_flight_per_client=2,
        max_creations_in_flight_per_address=4,
    )
    limits = FirstUses(MetadataView(), config, clock=ManualClock(), metrics=Metrics.disabled())
    ann = [limits.begin("topics", "", use("ann")) for _ in range(2)]
    in_flight = "metadata.max_creations_in_flight"
    shares = (
        "too many topics are being created by this client or from its address "
        f"({in_flight}_per_client, {in_flight}_per_address)"
    )
    with pytest.raises(RequestError) as refused:
        limits.begin("topics", "", use("ann"))
    assert refused.value.text == shares
    for _ in range(2):
        limits.begin("topics", "", use("bob"))
    with pytest.raises(RequestError) as refused:
        limits.begin("topics", "", use("cid"))
    assert refused.value.text == shares
    limits.begin("topics", "", use("dee", "10.0.0.2:5"))
    limits.begin_own("consumer groups")
    full = f"too many topics are being created ({in_flight})"
    with pytest.raises(RequestError) as refused:
        limits.begin("topics", "", use("eve", "10.0.0.3:5"))
    assert refused.value.text == full
    with pytest.raises(RequestError) as refused:
        limits.begin_own("topics")
    assert refused.value.text == full
    limits.end(ann[0])
    limits.begin("topics", "", use("ann"))


def test_a_refusal_by_pace_holds_no_room() -> None:
    """Refused calls may be very many."""
    config = MetadataSection(
        auto_creations_per_s_per_client=0.01, max_creations_in_flight_per_client=1
    )
    flood = Flood(config)
    assert flood.make(10, "", use("greedy")) == 1
    assert {text.rpartition("(")[2] for text in flood.refusals} == {f"{RATE}_per_client)"}
    flood.clock.advance(100)
    assert flood.make(1, "", use("greedy")) == 1


@pytest.fixture
def config() -> BrokerConfig:
    """Everything may be made on first use, three things by one client."""
    metadata = {"auto_create_topic": True, "auto_creations_per_s_per_client": 0.1}
    return broker_config(plugins=["kv"], metadata=metadata)


@pytest.mark.parametrize("kind", ["group", "topic", "table"])
async def test_one_client_makes_few_things(
    client: Client,
    edge: FakeEdge,
    app: BrokerApp,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Kinds make no difference; another client makes its own, and the broker what it needs."""

    def made(*_: object) -> NoReturn:
        raise RequestError(Code.NOT_FOUND, "nothing is written to it")

    monkeypatch.setattr(Tables, "get", made)

    async def make(number: int) -> str:
        """Make a thing; return why not."""
        if kind == "group":
            return (await client.receive("orders", f"g{number}"))[0].message
        if kind == "topic":
            return (await client.send(message(f"new{number}", 1))).status.message
        table = kv_pb2.TableName(namespace=f"ns{number}", name="t")
        request = kv_pb2.PutRequest(table=table, key=b"k")
        try:
            await edge.call(KV + "Put", request, kv_pb2.PutResponse, client.metadata)
        except CallError as refused:
            return str(refused)
        return ""

    refused = [text for text in [await make(number) for number in range(5)] if "too many" in text]
    plural = {"group": "consumer groups", "topic": "topics", "table": "tables"}[kind]
    where = f"by this client ({RATE}_per_client)"
    assert len(refused) == 2
    assert all(f"too many {plural} are being created {where}" in text for text in refused)
    client.metadata = METADATA | {"x-mq-client-id": "another"}
    assert "too many" not in await make(9)
    assert (await app._provisioner.system_group("", REDRIVE_GROUP)).name == REDRIVE_GROUP


async def test_those_that_wait_for_a_creation_are_not_charged(
    client: Client, meta: FakeMeta
) -> None:
    """A hundred consumers that start together name one consumer group."""
    answers = await asyncio.gather(*(client.receive("orders", "g") for _ in range(100)))
    assert {status.code for status, _ in answers} == {definition_pb2.MESSAGE_NOT_FOUND}
    assert meta.calls.count("CreateConsumerGroup") == 1
    assert (await client.receive("orders", "h"))[0].code == definition_pb2.MESSAGE_NOT_FOUND
