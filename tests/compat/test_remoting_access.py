"""The official remoting clients of Java on a node that controls access: keys, wrong ones, none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.compat.drivers import ClientError
from tests.compat.remoting_driver import VERSIONS, RemotingDriver
from tests.e2e.standalone import HOST, Standalone, free_port

USER = "shopkeeper"


class GuardedNode(Standalone):
    """A node with access control and a remoting port, run by its first admin."""

    def __init__(self, folder: object) -> None:
        self.nameserver = f"{HOST}:{free_port()}"
        port = self.nameserver.rpartition(":")[2]
        options = ("--remoting-port", port, "--access-control", "on")
        super().__init__(folder, options=options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    """A node that this module shares."""
    node = GuardedNode(tmp_path_factory.mktemp("access") / "data")
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
