"""Java's remoting clients while nodes are killed: nothing acked is lost, order is kept."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_testing import until_blocking
from tests.compat.drivers import ClientError
from tests.compat.remoting_driver import OldConsumer, OldMessage, OldProducer, RemotingDriver
from tests.compat.remoting_node import OldNode
from tests.e2e.cluster import Cluster

VERSION = "5.5.0"
ROUNDS = 3
QUEUES = 4
STEADY_S = 4.0
BETWEEN_SENDS_S = 0.02
ROUTE_MS = 1_000
READ_LIMIT_S = 150.0
LEAST_ACKED = 50


class OrderedSending(threading.Thread):
    """Sends numbers to the queues in turn, one at a time, until it is told to stop."""

    def __init__(self, producer: OldProducer, topic: str) -> None:
        super().__init__(name=topic)
        self.acked: list[bytes] = []
        self.errors = 0
        self._producer = producer
        self._topic = topic
        self._stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(BETWEEN_SENDS_S):
            body, queue = b"%d" % number, number % QUEUES
            try:
                self._producer.send(self._topic, body, how="queue", queue=queue)
                self.acked.append(body)
            except ClientError:
                # Such a message is stored or not.
                self.errors += 1
            number += 1

    def stop(self) -> None:
        """End after the send under way."""
        self._stopped.set()
        self.join()


class Watched:
    """A producer and three consumer groups of one topic: pulling, popping and orderly."""

    def __init__(self, driver: RemotingDriver, topic: str) -> None:
        producer = driver.producer(f"{topic}-p")
        producer.request_mode(topic, f"{topic}-pop", "POP")
        self.sending = OrderedSending(producer, topic)
        self._consumers: dict[str, OldConsumer] = {
            "pull": driver.consumer(f"{topic}-c1", f"{topic}-pull", topic),
            "pop": driver.consumer(f"{topic}-c2", f"{topic}-pop", topic, pop_invisible_ms=10_000),
            "orderly": driver.consumer(f"{topic}-c3", f"{topic}-orderly", topic, model="orderly"),
        }
        for consumer in self._consumers.values():
            # The groups begin before anything is killed.
            producer.send(topic, b"first", how="queue", queue=0)
            consumer.delivered(1)
        self.sending.start()

    def check(self) -> None:
        """Stop sending; everything that was acked arrives in each group, and in order."""
        until_blocking(
            lambda: len(self.sending.acked) > LEAST_ACKED, tell=lambda: self.sending.errors
        )
        self.sending.stop()
        wanted = set(self.sending.acked)
        print(f"{len(wanted)} acked, {self.sending.errors} errors")
        ends = time.monotonic() + READ_LIMIT_S
        for name, consumer in self._consumers.items():
            while missing := wanted - {one.body for one in consumer.delivered(0)}:
                assert time.monotonic() < ends, f"{name} misses {sorted(missing)[:10]}"
                time.sleep(0.5)
        check_order(self._consumers["orderly"].delivered(0))


def check_order(messages: list[OldMessage]) -> None:
    """No message of a queue is seen before an earlier one; messages may come again."""
    last: dict[int, int] = defaultdict(lambda: -1)
    seen: set[tuple[int, int]] = set()
    for one in messages:
        place = (one.queue, one.offset)
        if place not in seen:
            assert one.offset > last[one.queue], f"{place} came after offset {last[one.queue]}"
            last[one.queue] = one.offset
            seen.add(place)


@pytest.fixture
def old_node(tmp_path: Path) -> Iterator[OldNode]:
    """A node that the test may kill."""
    node = OldNode(tmp_path / "data")
    node.start()
    yield node
    node.close()


@pytest.mark.kill
@pytest.mark.timeout(420)
def test_clients_of_a_killed_node_lose_nothing(old_node: OldNode, name: str) -> None:
    """The node is killed and started again, several times, under load."""
    topic = old_node.create_topic(name, "--type", "FIFO", "--queues", str(QUEUES))
    old_node.create_group(f"{topic}-pop")
    with RemotingDriver(VERSION, old_node.nameserver, route_ms=ROUTE_MS) as driver:
        watched = Watched(driver, topic)
        for _ in range(ROUNDS):
            time.sleep(STEADY_S)
            old_node.kill()
            old_node.start()
        time.sleep(STEADY_S)
        watched.check()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose brokers have remoting ports."""
    config = tmp_path / "cluster.toml"
    config.write_text("[remoting]\nport = 0\n")
    made = Cluster(tmp_path / "c", config=config)
    made.up()
    made.settle()
    yield made
    made.down()


def nameserver_of(cluster: Cluster, broker: str) -> str:
    """The remoting address that a broker's log tells last."""
    log = (cluster.data_dir / broker / "log").read_text()
    words = [word for word in log.split() if word.startswith("nameserver=")]
    return words[-1].partition("=")[2]


@pytest.mark.kill
@pytest.mark.timeout(900)
def test_clients_of_a_cluster_lose_nothing(cluster: Cluster, name: str) -> None:
    """The storage node with most leaders is killed, then the broker behind the topic."""
    topic = cluster.create_topic(name, "--type", "FIFO", "--queues", str(QUEUES))
    cluster.create_group(f"{topic}-pop")
    brokers = {nameserver_of(cluster, broker): broker for broker in cluster.names("broker")}
    with RemotingDriver(VERSION, ";".join(brokers), route_ms=ROUTE_MS) as driver:
        watched = Watched(driver, topic)
        for victim in (cluster.by_leaderships()[0], brokers[driver.broker_of(topic)]):
            time.sleep(STEADY_S)
            cluster.local("kill", victim)
            time.sleep(STEADY_S)
            cluster.local("start", victim)
            cluster.settle()
        time.sleep(STEADY_S)
        watched.check()
