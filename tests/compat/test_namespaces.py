"""Namespaces: the same names in two of them have nothing to do with each other."""

from tests.compat.collect import take
from tests.compat.conftest import DriverPool
from tests.e2e.standalone import Standalone


def test_topics_and_groups_are_separate(
    node: Standalone, drivers: DriverPool, language: str, name: str
) -> None:
    """Producers and consumers of a namespace meet only those of the same namespace."""
    received = {}
    sent = {}
    for namespace in ("north", "south"):
        node.create_topic(name, "--queues", "1", "--namespace", namespace)
        producer = drivers.get(language, namespace=namespace).producer(name)
        sent[namespace] = [producer.send(namespace.encode()).message_id for _ in range(3)]

    for namespace in ("north", "south"):
        consumer = drivers.get(language, namespace=namespace).simple(name, {name: "*"})
        received[namespace] = [message.message_id for message in take(consumer, 3)]

    assert received == sent
