"""The clients of the remoting protocol in C++ (through its Python face) and Go, unchanged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.collect import take
from tests.compat.conftest import require
from tests.compat.drivers import ClientError, Driver, Options
from tests.compat.old_clients import CLIENTS, OldClient
from tests.compat.remoting_node import OldNode
from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port

USER = "shopkeeper"


@pytest.fixture(scope="module")
def old_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldNode]:
    """A node that this module shares."""
    node = OldNode(tmp_path_factory.mktemp("cpp") / "data")
    node.start()
    yield node
    node.close()


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, old_node: OldNode) -> Iterator[OldClient]:
    """Each of the clients."""
    with OldClient(request.param, old_node.nameserver) as driver:
        yield driver


def test_all_ways_to_send(old_node: OldNode, client: OldClient, name: str) -> None:
    """Each message is there once, those of a batch one by one, for all kinds of consumers."""
    topic = old_node.create_topic(name, "--queues", "4")
    client.producer(name)
    color = {"color": "red"}
    sent = client.send(name, topic, b"sync", tag="a", keys="k1 k2", properties=color)
    client.send(name, topic, b"async", how="async")
    client.send(name, topic, b"oneway", how="oneway")
    client.send(name, topic, b"x" * 100_000)
    assert client.send(name, topic, b"b1", b"b2", b"b3", how="batch")["status"] == "OK"
    client.push(f"{name}-c", f"{name}-g", topic)
    got = client.delivered(f"{name}-c", 7)
    bodies = sorted((b"sync", b"async", b"oneway", b"x" * 100_000, b"b1", b"b2", b"b3"))
    assert sorted(each["body"] for each in got) == bodies
    [first] = [each for each in got if each["body"] == b"sync"]
    assert (first["tag"], first["keys"], first["color"]) == ("a", "k1 k2", "red")
    assert first["message_id"] == sent["message_id"]
    pulled = client.pull(f"{name}-p", f"{name}-pull", topic)
    assert sorted(each["body"] for each in pulled) == bodies
    require("python")
    with Driver("python", Options(endpoint=old_node.endpoint, tls=False)) as driver:
        consumer = driver.simple(f"{name}-new", {topic: "*"})
        received = take(consumer, 7)
        assert len({each.message_id for each in received}) == 7
        [same] = [each for each in received if each.message_id == sent["message_id"]]
        assert (same.tag, list(same.keys), same.properties["color"]) == ("a", ["k1", "k2"], "red")


def test_failed_messages_come_again(old_node: OldNode, client: OldClient, name: str) -> None:
    """A listener that raises gets the message again, with its count; tags are filtered."""
    topic = old_node.create_topic(name, "--queues", "2")
    client.producer(name)
    client.push(f"{name}-c", f"{name}-g", topic, "a || b", failures=1)
    for tag in ("a", "b", "c"):
        client.send(name, topic, tag.encode(), tag=tag)
    got = client.delivered(f"{name}-c", 4, 90)
    times = sorted((each["body"], each["reconsume_times"]) for each in got)
    assert times == [(b"a", 0), (b"a", 1), (b"b", 0), (b"b", 1)]


def test_order_and_delay(old_node: OldNode, client: OldClient, name: str) -> None:
    """Messages for one queue come in order to an orderly listener, a delayed one after a second."""
    ordered = old_node.create_topic(f"{name}-ordered", "--type", "FIFO", "--queues", "4")
    delayed = old_node.create_topic(f"{name}-delayed", "--type", "DELAY", "--queues", "1")
    client.producer(name)
    bodies = [b"%d" % number for number in range(20)]
    client.push(f"{name}-o", f"{name}-og", ordered, orderly=True)
    for body in bodies:
        client.send(name, ordered, body, how="orderly", argument=6)
    got = client.delivered(f"{name}-o", 20, 90)
    queues = {each["queue"] for each in got}
    assert [each["body"] for each in got] == bodies
    assert len(queues) == 1
    client.push(f"{name}-d", f"{name}-dg", delayed)
    client.send(name, delayed, b"later", delay_level=1)
    assert [each["body"] for each in client.delivered(f"{name}-d", 1)] == [b"later"]


def test_broadcast_and_shared(old_node: OldNode, client: OldClient, name: str) -> None:
    """Each member of a broadcast group gets all, members of another group share them."""
    topic = old_node.create_topic(name, "--queues", "4")
    client.producer(name)
    names = {how: [f"{name}-{how}{number}" for number in range(2)] for how in ("all", "part")}
    for how, members in names.items():
        for member in members:
            client.push(member, f"{name}-{how}", topic, broadcast=how == "all")
    bodies = [b"%d" % number for number in range(40)]
    for body in bodies:
        client.send(name, topic, body)
    for member in names["all"]:
        got = client.delivered(member, 40, 90)
        assert sorted(each["body"] for each in got) == sorted(bodies)
    shared: Counter[bytes] = Counter()
    for member in names["part"]:
        client.delivered(member, 1, 90)
    for member in names["part"]:
        shared += Counter(each["body"] for each in client.delivered(member, 40, 5))
    assert set(shared) == set(bodies)


def test_transactions(old_node: OldNode, name: str) -> None:
    """A half is there once its producer commits it, at once or when it is asked."""
    topic = old_node.create_topic(name, "--type", "TRANSACTION", "--queues", "1")
    with OldClient("goremoting", old_node.nameserver) as client:
        for check in ("", "commit", "rollback"):
            client.transactions(f"{name}-{check}", check)
            client.send_half(f"{name}-{check}", topic, check.encode() or b"at once")
        client.push(f"{name}-c", f"{name}-g", topic)
        got = client.delivered(f"{name}-c", 2, 90)
        assert {each["body"] for each in got} == {b"at once", b"commit"}


@pytest.mark.parametrize("language", CLIENTS)
def test_keys_decide(tmp_path: Path, language: str, name: str) -> None:
    """Requests signed with right keys pass, with wrong ones and empty ones they do not."""
    nameserver = f"{HOST}:{free_port()}"
    port = nameserver.rpartition(":")[2]
    options = ("--remoting-port", port, "--access-control", "on")
    node = Standalone(tmp_path / "data", options=options)
    node.start()
    try:
        admin = json.loads((node.data_dir / "first-admin.json").read_text())
        node.keys = {
            "STRATA_ACCESS_KEY": admin["access_key"],
            "STRATA_SECRET_KEY": admin["secret_key"],
        }
        secret_key = node.strata("user", "create", USER)["secret_key"]
        for resource, actions in (("topic:shop*", "pub,sub"), ("group:shop*", "sub")):
            node.strata(
                *("policy", "create", USER, "--resource", resource),
                *("--actions", actions, "--decision", "allow"),
            )
        topic = node.create_topic(f"shop-{name}", "--queues", "1")
        with OldClient(language, nameserver, (USER, secret_key)) as driver:
            driver.producer(name)
            driver.send(name, topic, b"mine")
            driver.push(f"{name}-c", f"shop-{name}", topic)
            assert [each["body"] for each in driver.delivered(f"{name}-c", 1)] == [b"mine"]
        for keys in ((USER, f"not-{secret_key}"), None):
            with OldClient(language, nameserver, keys) as driver, pytest.raises(ClientError):
                driver.producer(name)
                driver.send(name, topic, b"foreign")
        assert len(node.strata("message", "query", topic)["messages"]) == 1
    finally:
        node.close()
