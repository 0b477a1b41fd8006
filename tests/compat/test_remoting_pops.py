"""Java's push consumers in POP mode, and the consumers that an application polls."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.compat.drivers import ClientError
from tests.compat.remoting_driver import (
    VERSIONS,
    OldConsumer,
    OldMessage,
    OldProducer,
    RemotingDriver,
)
from tests.compat.remoting_node import OldNode

POP_VERSIONS = VERSIONS[1:]
INVISIBLE_MS = 60_000


@pytest.fixture(scope="module")
def old_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldNode]:
    """A node that this module shares."""
    node = OldNode(tmp_path_factory.mktemp("pops") / "data")
    node.start()
    yield node
    node.close()


@pytest.fixture(scope="module", params=POP_VERSIONS)
def client(request: pytest.FixtureRequest, old_node: OldNode) -> Iterator[RemotingDriver]:
    """The clients that know POP."""
    with RemotingDriver(request.param, old_node.nameserver) as driver:
        yield driver


@pytest.fixture(scope="module", params=(VERSIONS[0], VERSIONS[-1]))
def puller(request: pytest.FixtureRequest, old_node: OldNode) -> Iterator[RemotingDriver]:
    """The oldest and the newest client."""
    with RemotingDriver(request.param, old_node.nameserver) as driver:
        yield driver


def popping(
    client: RemotingDriver,
    name: str,
    group: str,
    topic: str,
    *,
    invisible_ms: int = INVISIBLE_MS,
    **fields: object,
) -> OldConsumer:
    """Start a push consumer that leaves the balance to the broker."""
    return client.consumer(
        name,
        group,
        topic,
        pop_invisible_ms=invisible_ms,
        **fields,  # type: ignore[arg-type]
    )


def pop_of(node: OldNode, producer: OldProducer, topic: str, group: str) -> None:
    """Let a new group pop a topic."""
    node.strata("group", "create", group)
    producer.request_mode(topic, group, "POP")


def bodies_of(messages: list[OldMessage]) -> list[bytes]:
    return sorted(one.body for one in messages)


def test_members_share_all_queues(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """Each message is one member's; nothing comes again, and nothing is left behind."""
    topic, group = old_node.create_topic(name, "--queues", "4"), f"{name}-g"
    producer = client.producer(name)
    pop_of(old_node, producer, topic, group)
    assert old_node.strata("group", "show", group)["pop_topics"] == [topic]
    pair = [popping(client, f"{name}-{number}", group, topic) for number in range(2)]
    for number in range(40):
        producer.send(topic, b"%d" % number, tag="t", keys="k", properties={"p": "1"})
    ends = time.monotonic() + 60
    while sum(len(one.delivered(0)) for one in pair) < 40 and time.monotonic() < ends:
        time.sleep(0.2)
    got = [message for one in pair for message in one.delivered(0)]
    assert bodies_of(got) == sorted(b"%d" % number for number in range(40))
    for one in got:
        assert (one.tag, one.keys, one.properties["p"], one.topic) == ("t", "k", "1", topic)
        assert (one.reconsume_times, one.properties["POP_CK"].count(" ")) == (0, 8)
    until_acked(old_node, group)
    for each in pair:
        each.close()
    producer.close()


def until_acked(node: OldNode, group: str) -> None:
    """Wait until a group has nothing left and nothing in flight."""
    ends = time.monotonic() + 30
    while True:
        shown = node.strata("group", "show", group)
        if (shown["lag"], shown["in_flight"]) == (0, 0):
            return
        assert time.monotonic() < ends, shown
        time.sleep(0.2)


def test_a_failed_message_is_tried_again(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """The client hides it for its first delay (10 s); the count and the id are those of retries."""
    topic, group = old_node.create_topic(name, "--queues", "1"), f"{name}-g"
    producer = client.producer(name)
    pop_of(old_node, producer, topic, group)
    sent = producer.send(topic, b"hard")
    assert sent is not None
    consumer = popping(client, f"{name}-c", group, topic, failures=1)
    tries = consumer.delivered(2, 60)
    assert [one.reconsume_times for one in tries] == [0, 1]
    assert {(one.message_id, one.topic) for one in tries} == {(sent.message_id, topic)}
    until_acked(old_node, group)
    consumer.close()
    producer.close()


def test_a_message_that_fails_too_often_is_a_dead_letter(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """After the attempts of its consumer group, as for gRPC consumers."""
    topic, group = old_node.create_topic(name, "--queues", "1"), f"{name}-g"
    producer = client.producer(name)
    old_node.strata("group", "create", group, "--max-attempts", "1")
    producer.request_mode(topic, group, "POP")
    sent = producer.send(topic, b"poison")
    assert sent is not None
    consumer = popping(client, f"{name}-c", group, topic, failures=9)
    assert len(consumer.delivered(1)) == 1
    ends = time.monotonic() + 60
    while not (letters := old_node.strata("dlq", "show", group)["dead_letters"]):
        assert time.monotonic() < ends
        time.sleep(0.5)
    assert [one["message_id"] for one in letters] == [sent.message_id]
    assert len(consumer.delivered(0)) == 1
    consumer.close()
    producer.close()


def test_a_message_that_takes_too_long_comes_again(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """After its invisible time, while the first listener still works on it."""
    topic, group = old_node.create_topic(name, "--queues", "1"), f"{name}-g"
    producer = client.producer(name)
    pop_of(old_node, producer, topic, group)
    producer.send(topic, b"slow")
    consumer = popping(client, f"{name}-c", group, topic, invisible_ms=5_000, stall_ms=8_000)
    tries = consumer.delivered(2, 60)
    assert [(one.body, one.reconsume_times) for one in tries] == [(b"slow", 0), (b"slow", 1)]
    until_acked(old_node, group)
    consumer.close()
    producer.close()


def test_a_group_changes_its_mode(old_node: OldNode, client: RemotingDriver, name: str) -> None:
    """Its members notice within their next balance; no message is lost on the way."""
    topic, group = old_node.create_topic(name, "--queues", "2"), f"{name}-g"
    producer = client.producer(name)
    pop_of(old_node, producer, topic, group)
    consumer = popping(client, f"{name}-c", group, topic)
    producer.send(topic, b"popped")
    assert [one.body for one in consumer.delivered(1)] == [b"popped"]
    until_acked(old_node, group)
    producer.request_mode(topic, group, "PULL")
    assert old_node.strata("group", "show", group)["pop_topics"] == []
    ends, number = time.monotonic() + 60, 1
    while "POP_CK" in consumer.delivered(0)[-1].properties:
        assert time.monotonic() < ends
        producer.send(topic, b"%d" % number)
        number += 1
        consumer.delivered(number)
        time.sleep(1)
    got = {one.body for one in consumer.delivered(0)}
    assert got == {b"popped", *(b"%d" % each for each in range(1, number))}
    consumer.close()
    producer.close()


def test_an_orderly_consumer_of_an_ordered_group_pulls(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """Java's orderly consumers hand out nothing that they pop, so the broker lets them pull."""
    topic = old_node.create_topic(name, "--type", "FIFO", "--queues", "2")
    producer, group = client.producer(name), f"{name}-g"
    old_node.strata("group", "create", group, "--fifo")
    producer.request_mode(topic, group, "POP")
    for number in range(6):
        producer.send(topic, b"%d" % number, how="queue", queue=number % 2)
    consumer = popping(client, f"{name}-c", group, topic, model="orderly", failures=1)
    got = consumer.delivered(12)
    for queue in range(2):
        own = [int(one.body) for one in got if one.queue == queue]
        assert own == [number for number in range(queue, 6, 2) for _ in range(2)]
    consumer.close()
    producer.close()


def test_a_mode_needs_a_topic_and_a_group(
    old_node: OldNode, client: RemotingDriver, name: str
) -> None:
    """As with RocketMQ."""
    topic = old_node.create_topic(name)
    producer = client.producer(name)
    with pytest.raises(ClientError):
        producer.request_mode(topic, f"{name}-absent", "POP")
    producer.close()


def test_an_application_polls_queues_of_its_choice(
    old_node: OldNode, puller: RemotingDriver, name: str
) -> None:
    """It goes to offsets, to the ends and to a time, stores positions and pauses queues."""
    topic, group = old_node.create_topic(name, "--queues", "3"), f"{name}-g"
    producer = puller.producer(name)
    for number in range(6):
        producer.send(topic, b"%d" % number, how="queue", queue=number % 3)
    polled = puller.lite_pull(f"{name}-c", group, topic, queues=[0, 1], auto_commit=False)
    assert bodies_of(polled.poll(4)) == [b"0", b"1", b"3", b"4"]
    polled.commit()
    assert wait_committed(polled, 0, 2) == 2
    polled.seek(0, "1")
    assert bodies_of(polled.poll(1)) == [b"3"]
    polled.seek(1, "begin")
    assert bodies_of(polled.poll(2)) == [b"1", b"4"]
    polled.seek(0, "end")
    polled.pause(1)
    for queue in range(2):
        producer.send(topic, b"new %d" % queue, how="queue", queue=queue)
    # A pull that waited when its queue was paused may still bring one.
    got = bodies_of(polled.poll(2, 5))
    producer.send(topic, b"held", how="queue", queue=1)
    assert polled.poll(1, 2) == []
    polled.resume(1)
    got += bodies_of(polled.poll(3 - len(got)))
    assert sorted(got) == [b"held", b"new 0", b"new 1"]
    assert polled.offset_at(0, 0) == 0
    assert polled.offset_at(0, int(time.time() * 1_000) + 60_000) >= 2
    polled.close()
    producer.close()


def wait_committed(polled: object, queue: int, offset: int) -> int:
    """Wait until a position is stored; return it."""
    ends = time.monotonic() + 30
    while True:
        found = polled.committed(queue)  # type: ignore[attr-defined]
        if found >= offset or time.monotonic() > ends:
            return int(found)
        time.sleep(0.5)


def test_an_application_polls_what_it_subscribes_to(
    old_node: OldNode, puller: RemotingDriver, name: str
) -> None:
    """With a filter; members divide the queues, and the next one goes on at the position."""
    topic, group = old_node.create_topic(name, "--queues", "4"), f"{name}-g"
    producer = puller.producer(name)
    for number in range(8):
        producer.send(topic, b"%d" % number, how="queue", queue=number % 4, tag="ab"[number // 4])
    first = puller.lite_pull(f"{name}-1", group, topic, "b")
    assert bodies_of(first.poll(4)) == [b"4", b"5", b"6", b"7"]
    second = puller.lite_pull(f"{name}-2", group, topic, "b")
    # A member that comes makes the others balance; its queues begin where theirs ended.
    seen: dict[str, set[int]] = {"1": set(), "2": set()}
    ends, number = time.monotonic() + 90, 8
    while not (seen["1"] and seen["2"]):
        assert time.monotonic() < ends, seen
        for queue in range(4):
            producer.send(topic, b"%d" % number, how="queue", queue=queue, tag="b")
            number += 1
        seen["1"] |= {one.queue for one in first.poll(4, 2)}
        seen["2"] |= {one.queue for one in second.poll(4, 2)}
    for each in (first, second):
        # By itself it stores positions every five seconds, and not at its end.
        each.commit()
        each.close()
    third = puller.lite_pull(f"{name}-3", group, topic, "b")
    producer.send(topic, b"last", how="queue", queue=0, tag="b")
    got = third.poll(1)
    assert got[-1].body == b"last" or b"last" in bodies_of(third.poll(1))
    assert not {one.body for one in got} & {b"4", b"5", b"6", b"7"}
    third.close()
    producer.close()
