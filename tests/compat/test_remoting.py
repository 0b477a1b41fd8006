"""The official remoting clients of Java, unchanged: producers and push consumers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from hashlib import sha256

import pytest

from strata_testing import NotYet, until_blocking
from tests.compat.collect import take
from tests.compat.conftest import require
from tests.compat.drivers import ClientError, Driver, Options
from tests.compat.remoting_driver import VERSIONS, OldConsumer, OldMessage, RemotingDriver
from tests.compat.remoting_node import OldNode
from tests.e2e.standalone import Standalone


@pytest.fixture(scope="module")
def old_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldNode]:
    """A node that this module shares; the last test restarts it."""
    node = OldNode(tmp_path_factory.mktemp("remoting") / "data")
    node.start()
    yield node
    node.close()


@pytest.fixture(scope="module", params=VERSIONS)
def client(request: pytest.FixtureRequest, old_node: OldNode) -> Iterator[RemotingDriver]:
    """The client in each version."""
    with RemotingDriver(request.param, old_node.nameserver) as driver:
        yield driver


def of(consumer: OldConsumer, body: bytes) -> list[OldMessage]:
    """Return what a consumer got with a body."""
    return [one for one in consumer.delivered(0) if one.body == body]


def bodies_of(messages: list[object]) -> list[bytes]:
    return sorted(one.body for one in messages)  # type: ignore[attr-defined]


def test_all_ways_to_send(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """Sync, async, to a chosen queue, one-way and batch: a push consumer gets each once."""
    topic = old_node.create_topic(name, "--queues", "4")
    producer = client.producer(name)
    sent = [
        producer.send(topic, b"sync", tag="a", keys="k1 k2", properties={"color": "red"}),
        producer.send(topic, b"async", how="async"),
        producer.send(topic, b"queue", how="queue", queue=3),
        producer.send(topic, b"x" * 100_000),
    ]
    batch = producer.send(topic, b"b1", b"b2", b"b3", how="batch")
    producer.send(topic, b"oneway", how="oneway")
    assert batch is not None
    assert len(batch.offset_message_id.split(",")) == 3
    receipts = [one for one in sent if one is not None]
    assert [one.status for one in receipts] == ["SEND_OK"] * 4
    assert receipts[2].queue == 3

    consumer = client.consumer(f"{name}-c", f"{name}-g", topic)
    got = consumer.delivered(8)
    expected = [b"sync", b"async", b"queue", b"x" * 100_000, b"b1", b"b2", b"b3", b"oneway"]
    assert bodies_of(list(got)) == sorted(expected)
    assert {one.message_id for one in got} >= {one.message_id for one in receipts}
    first = next(one for one in got if one.body == b"sync")
    assert (first.tag, first.keys, first.properties["color"]) == ("a", "k1 k2", "red")
    assert (first.queue, first.offset) == (receipts[0].queue, receipts[0].offset)
    consumer.close()
    producer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_the_port_for_grpc_clients(
    tmp_path_factory: pytest.TempPathFactory, name: str, *, tls: bool
) -> None:
    """The oldest client sends, receives and retries by the only port that the node has."""
    node = Standalone(tmp_path_factory.mktemp("one-port") / "data")
    node.start()
    try:
        topic = node.create_topic(name, "--queues", "2")
        with RemotingDriver(VERSIONS[0], node.endpoint, tls=tls) as client:
            producer = client.producer(name)
            sent = producer.send(topic, b"x" * 100_000)
            assert sent is not None
            assert sent.status == "SEND_OK"
            consumer = client.consumer(f"{name}-c", f"{name}-g", topic, failures=1)
            tries = consumer.delivered(2, 90)
            assert [(one.body, one.reconsume_times) for one in tries] == [
                (b"x" * 100_000, 0),
                (b"x" * 100_000, 1),
            ]
            consumer.close()
            producer.close()
        assert node.stop() == 0
    finally:
        node.close()


@pytest.mark.parametrize("kind", ["LZ4", "ZSTD"])
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_bodies_that_clients_compress(
    old_node: OldNode, name: str, version: str, kind: str
) -> None:
    """Consumers of both protocols get them inflated."""
    require("python")
    topic = old_node.create_topic(name)
    body = b"compress me " * 20_000
    with (
        RemotingDriver(version, old_node.nameserver, compress_type=kind) as client,
        Driver("python", Options(endpoint=old_node.endpoint, tls=False)) as python,
    ):
        producer = client.producer(name)
        producer.send(topic, body)
        consumer = client.consumer(f"{name}-c", f"{name}-old", topic)
        [shown] = consumer.delivered(1)
        assert shown.body == body
        [got] = take(python.simple(f"{name}-new", {topic: "*"}), 1)
        assert (got.body_size, got.body_sha256) == (len(body), sha256(body).hexdigest())
        consumer.close()
        producer.close()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_request_gets_its_reply(
    old_node: OldNode, client: RemotingDriver, name: str, how: str
) -> None:
    """Small and compressed bodies, both ways; a request without a reply runs into its time."""
    topic = old_node.create_topic(name, "--queues", "2")
    replier = client.producer(f"{name}-r")
    consumer = client.consumer(f"{name}-c", f"{name}-g", topic, replies_by=replier.name)
    asker = client.producer(f"{name}-a")
    for body in (b"ping", b"long " * 20_000):
        assert asker.request(topic, body, how) == b"re: " + body
    with pytest.raises(ClientError, match=r"(?i)time"):
        asker.request(topic, b"mute", how, timeout_ms=3_000)
    for one in (consumer, asker, replier):
        one.close()


def test_messages_pass_between_the_protocols(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """A message of either protocol arrives by the other one, with the same id."""
    require("python")
    topic = old_node.create_topic(name)
    with Driver("python", Options(endpoint=old_node.endpoint, tls=False)) as python:
        producer = client.producer(name)
        sent = producer.send(topic, b"old", tag="a", keys="k", properties={"p": "1"})
        assert sent is not None
        [got] = take(python.simple(f"{name}-new", {topic: "a"}), 1)
        assert (got.message_id, got.tag, got.keys) == (sent.message_id, "a", ["k"])
        assert got.properties["p"] == "1"

        consumer = client.consumer(f"{name}-c", f"{name}-old", topic, "b")
        receipt = python.producer(topic).send(b"new", tag="b", keys=["x"], properties={"q": "2"})
        [back] = consumer.delivered(1)
        assert (back.message_id, back.body, back.tag) == (receipt.message_id, b"new", "b")
        assert (back.keys, back.properties["q"]) == ("x", "2")
        consumer.close()
        producer.close()


def test_a_failed_message_is_tried_again(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """It comes back through the topic of retries, with its id and the count of attempts."""
    topic = old_node.create_topic(name, "--queues", "1")
    producer = client.producer(name)
    sent = producer.send(topic, b"hard")
    assert sent is not None
    consumer = client.consumer(f"{name}-c", f"{name}-g", topic, failures=1)
    tries = consumer.delivered(2, 90)
    assert [one.reconsume_times for one in tries] == [0, 1]
    assert {(one.message_id, one.topic) for one in tries} == {(sent.message_id, topic)}
    consumer.close()
    producer.close()


@pytest.mark.parametrize("model", ["concurrent", "orderly"])
def test_a_message_that_fails_too_often_is_a_dead_letter(
    old_node: OldNode, client: RemotingDriver, name: str, model: str
) -> None:
    """Operators see it, a consumer of its topic gets it, and it can be sent again."""
    topic = old_node.create_topic(name, "--queues", "1")
    producer, group = client.producer(name), f"{name}-g"
    sent = producer.send(topic, b"poison", tag="a", properties={"p": "1"})
    assert sent is not None
    consumer = client.consumer(f"{name}-c", group, topic, model=model, failures=1, max_times=0)
    assert len(consumer.delivered(1)) == 1
    letters = client.consumer(f"{name}-l", f"{name}-letters", f"%DLQ%{group}")
    [letter] = letters.delivered(1, 90)
    assert (letter.body, letter.tag, letter.properties["p"]) == (b"poison", "a", "1")
    assert letter.message_id == sent.message_id
    [listed] = old_node.strata("dlq", "show", group)["dead_letters"]
    assert listed["message_id"] == sent.message_id
    old_node.strata("dlq", "redrive", group)
    again = consumer.delivered(2)
    assert (again[1].body, again[1].reconsume_times) == (b"poison", 0)
    letters.close()
    consumer.close()
    producer.close()


def test_transactions(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """Committed messages arrive, also those whose producer decides when it is asked."""
    topic = old_node.create_topic(name, "--type", "TRANSACTION", "--queues", "2")
    producer = client.transactions(name)
    consumer = client.consumer(f"{name}-c", f"{name}-g", topic)
    for local, check in (
        ("commit", "rollback"),
        ("rollback", "commit"),
        ("unknown", "commit"),
        ("unknown", "rollback"),
    ):
        body = f"{local} {check}".encode()
        decisions = {"local": local, "check": check}
        sent = producer.send(topic, body, how="transaction", properties=decisions)
        assert sent is not None
        assert sent.status == "SEND_OK"
    got = consumer.delivered(2, 90)
    assert bodies_of(list(got)) == [b"commit rollback", b"unknown commit"]
    # A message that was rolled back after a check would have come by now.
    time.sleep(5)
    assert len(consumer.delivered(0)) == 2
    consumer.close()
    producer.close()


def test_orderly_consumers_see_a_queue_in_order(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """Also when a message fails once: the next ones wait. FIFO topics take messages by queue."""
    topic = old_node.create_topic(name, "--type", "FIFO", "--queues", "2")
    producer = client.producer(name)
    for number in range(6):
        producer.send(topic, b"%d" % number, how="queue", queue=number % 2)
    consumer = client.consumer(f"{name}-c", f"{name}-g", topic, model="orderly", failures=1)
    got = consumer.delivered(12)
    for queue in range(2):
        own = [int(one.body) for one in got if one.queue == queue]
        assert [number for at, number in enumerate(own) if number not in own[:at]] == [
            *range(queue, 6, 2)
        ]
    consumer.close()
    producer.close()


def test_two_consumers_share_and_broadcast_consumers_do_not(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """A group divides the queues; in broadcast mode each member gets everything."""
    topic = old_node.create_topic(name, "--queues", "4")
    producer = client.producer(name)
    pair = [client.consumer(f"{name}-{number}", f"{name}-g", topic) for number in range(2)]
    everybody = [
        client.consumer(f"{name}-b{number}", f"{name}-b", topic, model="broadcast")
        for number in range(2)
    ]
    probes = itertools.count()

    def is_balanced() -> object:
        """Send a message to each queue; whether each member got those of two queues."""
        probe = b"probe %d" % next(probes)
        for queue in range(4):
            producer.send(topic, probe, how="queue", queue=queue)
        until_blocking(lambda: sum(len(of(one, probe)) for one in pair) >= 4)
        shares = [{each.queue for each in of(one, probe)} for one in pair]
        return list(map(len, shares)) == [2, 2] or NotYet(shares)

    # A member that has just started may rebalance once more.
    until_blocking(is_balanced, 90, step_s=1)
    for number in range(40):
        producer.send(topic, b"%d" % number)
    expected = sorted(b"%d" % number for number in range(40))

    def numbers(*consumers: OldConsumer) -> list[bytes]:
        return bodies_of(
            [each for one in consumers for each in one.delivered(0) if each.body in expected]
        )

    for consumers in (pair, *([one] for one in everybody)):
        until_blocking(lambda consumers=consumers: len(numbers(*consumers)) >= 40)  # type: ignore[misc]
        assert numbers(*consumers) == expected
    assert all(map(numbers, pair)), "each of the two got some"
    for one in (*pair, *everybody):
        one.close()
    producer.close()


def test_delays_and_filters(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """A delay level holds a message back; SQL92 filters at the broker."""
    topic = old_node.create_topic(name, "--type", "MIXED")
    producer = client.producer(name)
    consumer = client.consumer(f"{name}-c", f"{name}-g", topic, "n > 1", sql=True)
    producer.send(topic, b"no", properties={"n": "1"})
    begun = time.monotonic()
    producer.send(topic, b"later", properties={"n": "2"}, delay_level=2)
    producer.send(topic, b"now", properties={"n": "3"})
    got = consumer.delivered(2)
    assert [one.body for one in got] == [b"now", b"later"]
    assert time.monotonic() - begun >= 4.9
    consumer.close()
    producer.close()


def test_a_delayed_message_is_recalled(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """By clients that know how, with the handle of their send."""
    topic = old_node.create_topic(name, "--type", "DELAY", "--queues", "1")
    producer = client.producer(name)
    sent = producer.send(topic, b"never", delay_level=3)
    assert sent is not None
    if client.version != VERSIONS[-1]:
        assert sent.recall_handle is None
    else:
        assert producer.recall(topic, sent.recall_handle or "") == sent.message_id
        with pytest.raises(ClientError) as refused:
            producer.recall(topic, "no handle")
        assert "invalid" in refused.value.text
        consumer = client.consumer(f"{name}-c", f"{name}-g", topic)
        producer.send(topic, b"later", delay_level=4)
        assert [one.body for one in consumer.delivered(1)] == [b"later"]
        consumer.close()
    producer.close()


def test_an_unknown_topic_and_a_wrong_type(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """The client's own exceptions, with RocketMQ's texts."""
    topic = old_node.create_topic(name)
    producer = client.producer(name)
    with pytest.raises(ClientError, match="No route info of this topic"):
        producer.send(f"{name}-absent", b"x")
    with pytest.raises(ClientError, match="actual type is DELAY") as refused:
        producer.send(topic, b"x", delay_level=1)
    assert refused.value.code == 13
    producer.close()


def test_positions_survive_a_restart(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """A group goes on where it was after the broker and the client were started anew."""
    topic = old_node.create_topic(name, "--queues", "2")
    producer = client.producer(name)
    for number in range(4):
        producer.send(topic, b"before-%d" % number)
    consumer = client.consumer(f"{name}-1", f"{name}-g", topic)
    assert len(consumer.delivered(4)) == 4
    consumer.close()
    old_node.stop()
    old_node.start()
    for number in range(2):
        # A producer finds the broker again by itself.
        deadline = time.monotonic() + 60
        while True:
            try:
                producer.send(topic, b"after-%d" % number)
                break
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
    again = client.consumer(f"{name}-2", f"{name}-g", topic)
    assert bodies_of(list(again.delivered(2))) == [b"after-0", b"after-1"]
    again.close()
    producer.close()
