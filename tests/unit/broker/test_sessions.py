"""Who is alive, and who storage nodes are told to be alive (rule 25)."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.app import BrokerApp
from strata_broker.clients.sessions import Sessions
from strata_broker.config import SessionSection
from strata_mq.hashing import text_hash
from tests.unit.broker.conftest import Client
from tests.unit.broker.fake_edge import MESSAGING, FakeEdge
from tests.unit.broker.fake_storage import FakeStorage, until


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


def test_a_silent_client_is_gone_after_15_s_a_connected_one_after_120_s() -> None:
    """An open stream or receive keeps a client for longer, not for ever."""
    clock = ManualClock()
    sessions = Sessions(SessionSection(), clock)
    sessions.heard("silent")
    sessions.heard("connected").open_calls += 1
    both = {text_hash("silent"), text_hash("connected")}
    clock.now_s += 15
    assert sessions.live_holders() == both
    clock.now_s += 0.1
    assert sessions.live_holders() == {text_hash("connected")}
    clock.now_s += 105
    assert sessions.live_holders() == set()
    assert len(sessions) == 0


def test_the_longest_silent_client_makes_room() -> None:
    """The number of clients is bounded."""
    sessions = Sessions(SessionSection(max_clients=2), ManualClock())
    for client in ("a", "b", "a", "c"):
        sessions.heard(client)
    assert sessions.live_holders() == {text_hash("a"), text_hash("c")}


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


async def test_a_goodbye_is_reported_at_once(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The client's leases must not wait for the next period."""
    await heartbeat(edge, "a")
    await app.liveness.report()
    await edge.call(
        MESSAGING + "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
        {"x-mq-client-id": "a"},
    )
    await until(lambda: list(storage.reports[-1].gone) == [text_hash("a")])
    assert storage.clients[7] == set()


async def test_a_client_that_fell_silent_leaves_the_list_but_is_not_gone(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Another broker may still hear it, so only the full list tells."""
    await heartbeat(edge, "a")
    await app.liveness.report()
    app.sessions.heard("a").heard_s -= 20
    await app.liveness.report()
    assert storage.reports[-1].full
    assert list(storage.reports[-1].gone) == []
    assert storage.clients[7] == set()


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
    """The metadata say it, each client in its own words."""
    client.metadata = {**client.metadata, "x-mq-language": name}
    await client.receive("orders", "g", broker="strata-1")
    heard = app.sessions.heard(client.metadata["x-mq-client-id"])
    assert heard.language == language
