"""The official Python client on a broker of two workers: it sees one broker."""

from collections.abc import Iterator

import pytest

from tests.compat.collect import take
from tests.compat.conftest import require
from tests.compat.drivers import TLS_BY_DEFAULT, Driver, Options
from tests.e2e.cluster import Cluster

LANGUAGE = "python"
CLIENTS = 4
"""Each has a connection of its own; that all reach one worker happens once in eight runs."""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nothing stands between the client and the workers."""
    require(LANGUAGE)
    made = Cluster(
        tmp_path_factory.mktemp("cluster") / "c",
        nameservers=1,
        storage=1,
        brokers=1,
        workers=2,
        forwarder=False,
    )
    made.up()
    made.settle()
    yield made
    made.down()


@pytest.mark.timeout(300)
def test_clients_of_both_workers_share_topics_and_groups(cluster: Cluster) -> None:
    """Consumers of one group together receive each message of any client once."""
    topic = cluster.create_topic("workers", "--queues", "4")
    options = Options(endpoint=cluster.endpoint, tls=TLS_BY_DEFAULT[LANGUAGE])
    with Driver(LANGUAGE, options) as driver:
        producers = [driver.producer(topic) for _ in range(CLIENTS)]
        consumer = driver.simple("workers-simple", {topic: "*"})
        others = [driver.simple("workers-simple", {topic: "*"}) for _ in range(CLIENTS - 1)]
        pushed = driver.push("workers-push", {topic: "*"})
        sent = [
            producer.send(b"%d" % number).message_id
            for number in range(5)
            for producer in producers
        ]
        received = take(consumer, len(sent))
        delivered = pushed.delivered(len(sent))
        members = [
            {each["client_id"] for each in cluster.strata("group", "show", group)["members"]}
            for group in ("workers-simple", "workers-simple", "workers-push")
        ]
        for each in others:
            each.close()

    assert sorted(message.message_id for message in received) == sorted(sent)
    assert {message.message_id for message in delivered} == set(sent)
    assert [len(each) for each in members] == [CLIENTS, CLIENTS, 1]
    assert members[0] == members[1]
