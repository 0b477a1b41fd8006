"""The official remoting clients of Java on a node that controls access: keys, TLS, neither."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_runtime import tls
from tests.compat.drivers import ClientError
from tests.compat.remoting_driver import VERSIONS, RemotingDriver
from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port

USER = "shopkeeper"


class GuardedNode(Standalone):
    """A node with access control and a remoting port with TLS, run by its first admin."""

    def __init__(self, folder: Path) -> None:
        self.nameserver = f"{HOST}:{free_port()}"
        port = self.nameserver.rpartition(":")[2]
        made = tls.self_signed(folder / "certificate")
        config = folder / "node.toml"
        config.write_text(
            "[remoting]\n"
            f'certificate_file = "{made.certificate_file}"\nkey_file = "{made.key_file}"\n'
        )
        options = ("--remoting-port", port, "--access-control", "on", "--config", str(config))
        super().__init__(folder / "data", options=options)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    """A node that this module shares."""
    node = GuardedNode(tmp_path_factory.mktemp("access"))
    node.start()
    admin = json.loads((node.data_dir / "first-admin.json").read_text())
    node.keys = {
        "STRATA_ACCESS_KEY": admin["access_key"],
        "STRATA_SECRET_KEY": admin["secret_key"],
    }
    yield node
    node.close()


@pytest.fixture(scope="module")
def secret_key(guarded: GuardedNode) -> str:
    """The secret key of a user who may use topics and consumer groups called `shop...`."""
    made = guarded.strata("user", "create", USER)
    for resource, actions in (("topic:shop*", "pub,sub"), ("group:shop*", "sub")):
        guarded.strata(
            *("policy", "create", USER, "--resource", resource),
            *("--actions", actions, "--decision", "allow"),
        )
    return str(made["secret_key"])


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_decide(guarded: GuardedNode, secret_key: str, version: str, name: str) -> None:
    """Right keys do all that a producer and a consumer do; other keys, and none, do nothing."""
    topic = guarded.create_topic(f"shop-{name}", "--queues", "1")
    foreign = guarded.create_topic(f"bank-{name}", "--queues", "1")
    with RemotingDriver(version, guarded.nameserver, (USER, secret_key)) as driver:
        producer = driver.producer(f"shop-{name}")
        sent = producer.send(topic, b"mine", tag="a", properties={"p": "\u00e9"})
        batch = producer.send(topic, b"1", b"2", how="batch")
        assert sent is not None
        assert batch is not None
        consumer = driver.consumer(f"shop-{name}-c", f"shop-{name}-g", topic, failures=1)
        got = consumer.delivered(6, 90)
        assert {one.body for one in got} == {b"mine", b"1", b"2"}
        assert [one.reconsume_times for one in got if one.body == b"mine"] == [0, 1]
        with pytest.raises(ClientError):
            producer.send(foreign, b"x")
        consumer.close()
        producer.close()
    for keys in (None, (USER, "not-" + secret_key), ("nobody", "secret-key")):
        with (
            RemotingDriver(version, guarded.nameserver, keys) as driver,
            pytest.raises(ClientError),
        ):
            driver.producer(f"shop-{name}").send(topic, b"x")
    assert guarded.strata("message", "query", foreign)["messages"] == []
    assert len(guarded.strata("message", "query", topic)["messages"]) == 3


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_pops_need_the_rights_of_receives(
    guarded: GuardedNode, secret_key: str, version: str, name: str
) -> None:
    """An admin sets the mode; a user pops and acks with signed requests and signed handles."""
    topic, group = guarded.create_topic(f"shop-{name}", "--queues", "2"), f"shop-{name}-g"
    guarded.create_group(group)
    admin = (guarded.keys["STRATA_ACCESS_KEY"], guarded.keys["STRATA_SECRET_KEY"])
    with (
        RemotingDriver(version, guarded.nameserver, admin) as operator,
        RemotingDriver(version, guarded.nameserver, (USER, secret_key)) as user,
    ):
        producer = user.producer(f"shop-{name}")
        producer.send(topic, b"1")
        with pytest.raises(ClientError):
            producer.request_mode(topic, group, "POP")
        operator.producer(f"admin-{name}").request_mode(topic, group, "POP")
        consumer = user.consumer(f"shop-{name}-c", group, topic, pop_invisible_ms=60_000)
        [got] = consumer.delivered(1)
        assert (got.body, got.properties["POP_CK"].count(" ")) == (b"1", 8)
        producer.send(topic, b"2")
        consumer.delivered(2)
        ends = time.monotonic() + 30
        while (shown := guarded.strata("group", "show", group))["in_flight"] or shown["lag"]:
            assert time.monotonic() < ends, shown
            time.sleep(0.2)
        consumer.close()
        producer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_tls(guarded: GuardedNode, secret_key: str, version: str, name: str) -> None:
    """On the same port; a body of many TLS records and one that is compressed."""
    topic = guarded.create_topic(f"shop-{name}", "--queues", "1")
    keys = (USER, secret_key)
    with RemotingDriver(version, guarded.nameserver, keys, tls=True) as driver:
        producer = driver.producer(f"shop-{name}")
        bodies = {b"small", random.Random(1).randbytes(300_000), b"x" * 300_000}
        for body in bodies:
            assert producer.send(topic, body) is not None
        consumer = driver.consumer(f"shop-{name}-c", f"shop-{name}-g", topic)
        assert {one.body for one in consumer.delivered(3)} == bodies
        consumer.close()
        producer.close()
