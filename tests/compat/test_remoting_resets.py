"""A reset by the `strata` command reaches consumers of the remoting protocol that run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.remoting_driver import VERSIONS, RemotingDriver
from tests.compat.test_mqadmin import AdminNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminNode]:
    """A node that this module shares."""
    node = AdminNode(tmp_path_factory.mktemp("resets") / "data")
    node.start()
    yield node
    node.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer_that_runs_goes_on_from_the_new_position(node: AdminNode, version: str) -> None:
    """It gets the messages again and stores positions from there on, not its former ones."""
    topic = node.create_topic(f"reset-{version.replace('.', '-')}", "--queues", "2")
    group = f"{topic}-g"
    with RemotingDriver(version, node.nameserver) as client:
        producer = client.producer(topic)
        consumer = client.consumer(f"{topic}-c", group, topic, "*")
        for number in range(4):
            producer.send(topic, b"%d" % number, how="queue", queue=number % 2)
        consumer.delivered(4)
        node.strata("group", "reset", group, "--to", "earliest", "--topic", topic, "--yes")
        assert len(consumer.delivered(8)) == 8
        # It stores its positions at its end.
        consumer.close()
        producer.close()
    shown = node.strata("group", "show", group)
    cursors = [one["cursor"] for one in shown["queues"] if one["topic"] == topic]
    assert cursors == [2, 2]
