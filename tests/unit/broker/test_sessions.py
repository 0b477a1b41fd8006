"""Clients that are alive, and those that storage nodes hear to be alive (rule 25)."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import SessionSection
from strata_broker.clients import liveness
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.requests import Caller
from strata_mq.layout.hashing import text_hash
from strata_mq.requests.errors import Code, RequestError
from strata_testing import ManualClock, until
from strata_testing.broker.client import Client
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage


def test_a_silent_client_is_gone_after_15_s_a_connected_one_after_120_s() -> None:
    """An open stream or receive keeps a client for longer, not forever."""
    clock = ManualClock()
    sessions = Sessions(SessionSection(), clock)
    sessions.heard("silent")
    sessions.heard("connected").open_calls += 1
    both = {text_hash("silent"), text_hash("connected")}
    clock.advance(15)
    assert sessions.live_holders() == both
    clock.advance(0.1)
    assert sessions.live_holders() == {text_hash("connected")}
    clock.advance(105)
    assert sessions.live_holders() == set()
    assert len(sessions) == 1, "its stream is still open"
    sessions.heard("connected").open_calls -= 1
    clock.advance(121)
    assert sessions.live_holders() == set()
    assert len(sessions) == 0


def refused(sessions: Sessions, client_id: str, peer: str = "") -> bool:
    """Whether a client is one too many."""
    try:
        sessions.heard(client_id, peer)
    except RequestError as failure:
        assert failure.code is Code.TOO_MANY_REQUESTS
        return True
    return False


def test_only_who_is_silent_makes_room() -> None:
    """Ids cost nothing: neither who lives nor who has a stream makes room for made-up ones."""
    clock = ManualClock()
    sessions = Sessions(SessionSection(max_clients=3), clock)
    sessions.heard("silent")
    sessions.heard("connected").open_calls += 1
    clock.advance(20)
    sessions.heard("alive")
    assert not refused(sessions, "new")
    assert refused(sessions, "newer")
    assert not refused(sessions, "alive")
    assert sessions.live_holders() == set(map(text_hash, ("connected", "alive", "new")))
    clock.advance(20)
    assert not refused(sessions, "later")
    assert text_hash("connected") in sessions.live_holders()


def test_one_address_has_a_share_of_the_clients() -> None:
    """Room that the address does not use is there for other addresses."""
    clock = ManualClock()
    sessions = Sessions(SessionSection(max_clients=10, max_clients_per_address=2), clock)
    assert not refused(sessions, "a", "[::1]:1")
    assert not refused(sessions, "b", "[::1]:2")
    assert refused(sessions, "c", "[::1]:3")
    assert not refused(sessions, "c", "127.0.0.1:1")
    sessions.terminated("a")
    assert not refused(sessions, "d", "[::1]:4")


def test_who_said_goodbye_and_keeps_its_stream_is_gone_until_it_speaks() -> None:
    """It stays one client: a stream of nobody would count as silent after 15 s."""
    clock = ManualClock()
    sessions = Sessions(SessionSection(), clock)
    client = sessions.heard("a")
    client.open_calls += 1
    sessions.terminated("a")
    assert sessions.live_holders() == set()
    assert sessions.take_goodbyes() == {client.holder}
    assert sessions.heard("a") is client
    clock.advance(100)
    assert sessions.live_holders() == {client.holder}
    client.open_calls -= 1
    sessions.terminated("a")
    assert len(sessions) == 0


def settings_of(size: int) -> definition_pb2.Settings:
    """Settings of a consumer with an expression of that size."""
    settings = definition_pb2.Settings()
    settings.subscription.group.name = "g"
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = "orders"
    entry.expression.expression = "x" * size
    return settings


def test_what_clients_said_has_a_limit_in_bytes() -> None:
    """Beyond it nothing is remembered, and the client is served all the same."""
    sessions = Sessions(SessionSection(max_bytes=100_000), ManualClock())
    for number in range(20):
        sessions.heard(f"c{number}")
        sessions.described(Caller(f"c{number}", ""), settings_of(20_000), 1)
    said = [client for client in sessions.alive() if client.said]
    assert 0 < len(said) <= 5
    assert all(len(text) <= 1_024 for one in said for text in one.subscriptions.values())
    assert {client.consumer_group for client in sessions.alive()} == {("", "g")}
    for client in list(sessions.alive()):
        sessions.subscribed(client, ("", "g"), ("", "other"), "y" * 50_000)
        sessions.terminated(client.client_id)
    sessions.heard("last")
    assert sessions.described(Caller("last", ""), settings_of(90_000), 1).said


def test_members_are_the_live_clients_of_a_group() -> None:
    """By what receives show, settings or not."""
    sessions = Sessions(SessionSection(), ManualClock())
    client = sessions.heard("c")
    sessions.subscribed(client, ("", "g"), ("", "orders"), "a||b")
    assert [client.client_id for client in sessions.alive()] == ["c"]
    assert client.subscriptions == {("", "orders"): "a||b"}
    assert (sessions.count(consumers=True), sessions.count(consumers=False)) == (1, 0)


async def heartbeat(edge: FakeEdge, client_id: str) -> None:
    """Send a heartbeat."""
    await edge.call(
        MESSAGING + "Heartbeat",
        service_pb2.HeartbeatRequest(),
        service_pb2.HeartbeatResponse,
        {"x-mq-client-id": client_id},
    )


async def test_storage_hears_everything_first_then_changes(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Full, then a delta, then full again when the node asks for it."""
    reporter = app.liveness
    await heartbeat(edge, "a")
    await reporter.report()
    await heartbeat(edge, "b")
    await reporter.report()
    last = storage.reports[-1]
    assert not last.full
    assert list(last.live) == [text_hash("b")]
    assert storage.clients[7] == {text_hash("a"), text_hash("b")}
    storage.clients.clear()
    await reporter.report()
    assert storage.reports[-1].full
    assert storage.clients[7] == {text_hash("a"), text_hash("b")}


async def say_goodbye(edge: FakeEdge, client_id: str) -> None:
    """Let a client end."""
    await edge.call(
        MESSAGING + "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
        {"x-mq-client-id": client_id},
    )


async def test_a_goodbye_is_reported_at_once(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The client's leases must not wait for the next period."""
    await heartbeat(edge, "a")
    await app.liveness.report()
    await say_goodbye(edge, "a")
    await until(lambda: list(storage.reports[-1].gone) == [text_hash("a")])
    assert storage.clients[7] == set()


async def test_goodbyes_that_come_together_are_one_report(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report looks at all clients: twenty that end must not cost twenty looks at all."""
    # However long the goodbyes take on a busy machine, the pause ends after all of them.
    monkeypatch.setattr(liveness, "_PAUSE_S", 3_600.0)
    names = [f"c{number}" for number in range(20)]
    for name in names:
        await heartbeat(edge, name)
    await app.liveness.report()
    before = len(storage.reports)
    for name in names[:19]:
        await say_goodbye(edge, name)
        # The reporter would have its turn.
        for _ in range(5):
            await asyncio.sleep(0)
    assert len(storage.reports) == before
    app.liveness._wake_up()
    await until(lambda: storage.clients[7] == {text_hash("c19")})
    (report,) = list(storage.reports)[before:]
    gone = set(report.gone)
    assert gone == {text_hash(name) for name in names[:19]}


async def test_a_broker_that_stops_passes_the_last_goodbyes_on(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Their leases would wait for the silence of the clients; a client that came back has none."""
    for name in ("a", "b", "c"):
        await heartbeat(edge, name)
    await app.liveness.report()
    await say_goodbye(edge, "a")
    await say_goodbye(edge, "b")
    await heartbeat(edge, "b")
    await app.liveness.leave()
    last = storage.reports[-1]
    assert (last.leaving, list(last.live), list(last.gone)) == (True, [], [text_hash("a")])


async def test_a_client_that_fell_silent_leaves_the_list_but_is_not_gone(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Another broker may still hear it; the others that live are not told again."""
    await heartbeat(edge, "a")
    await heartbeat(edge, "b")
    await app.liveness.report()
    app.sessions.heard("a").heard_s -= 20
    await app.liveness.report()
    last = storage.reports[-1]
    assert not last.full
    assert (list(last.live), list(last.gone)) == ([], [])
    assert list(last.silent) == [text_hash("a")]
    assert storage.clients[7] == {text_hash("b")}


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("GO", definition_pb2.GOLANG),
        ("HTTP", definition_pb2.NODE_JS),
        ("python", definition_pb2.PYTHON),
        ("COBOL", definition_pb2.LANGUAGE_UNSPECIFIED),
    ],
)
async def test_a_consumer_without_settings_has_a_language(
    client: Client, app: BrokerApp, name: str, language: int
) -> None:
    """The metadata says it, each client in its own words."""
    client.metadata = {**client.metadata, "x-mq-language": name}
    await client.receive("orders", "g", broker="strata-1")
    heard = app.sessions.heard(client.metadata["x-mq-client-id"])
    assert heard.language == language
