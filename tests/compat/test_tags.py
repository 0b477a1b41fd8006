"""Tag filters: exact, by whole tags, never by their hashes."""

from tests.compat.collect import take_until
from tests.compat.drivers import Driver, Received, SimpleConsumer
from tests.e2e.standalone import Standalone

LAST = b"last"


def tags_until_last(consumer: SimpleConsumer, last_id: str) -> list[str | None]:
    """Return the tags received up to the message that was sent last."""

    def complete(messages: list[Received]) -> bool:
        return any(message.message_id == last_id for message in messages)

    received = take_until(consumer, complete)
    return [message.tag for message in received if message.message_id != last_id]


def test_one_tag(node: Standalone, driver: Driver, name: str) -> None:
    """A tag selects its messages only: no twin of the same hash, no other case, none without."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    # "Aa" and "BB" have the same hash code in the original system.
    for tag in ("Aa", "BB", "aa", None, "A", "Aa"):
        producer.send(tag=tag)
    last = producer.send(LAST, tag="Aa")

    consumer = driver.simple(name, {topic: "Aa"})

    assert tags_until_last(consumer, last.message_id) == ["Aa", "Aa"]


def test_any_of_several_tags(node: Standalone, driver: Driver, name: str) -> None:
    """Tags joined by two bars, with blanks, select the messages of each."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    for tag in ("A", "C", "B", None, "AB"):
        producer.send(tag=tag)
    last = producer.send(LAST, tag="A")

    consumer = driver.simple(name, {topic: "A || B"})

    assert sorted(map(str, tags_until_last(consumer, last.message_id))) == ["A", "B"]


def test_star_takes_all(node: Standalone, driver: Driver, name: str) -> None:
    """The expression * selects every message, those without a tag too."""
    topic = node.create_topic(name, "--queues", "1")
    producer = driver.producer(topic)
    for tag in ("A", None, "Aa"):
        producer.send(tag=tag)
    last = producer.send(LAST)

    consumer = driver.simple(name, {topic: "*"})

    assert sorted(map(str, tags_until_last(consumer, last.message_id))) == ["A", "Aa", "None"]
