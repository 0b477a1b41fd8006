"""Producer groups of remoting clients: how many one connection may have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strata_broker.clients.producers import ProducersOf
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.producer_groups import ProducerGroups
from strata_remoting import Store
from strata_runtime.metrics import Metrics

TOPIC = ("", "orders")
MOST = 2


class FakeProducers:
    """Keeps who joined."""

    def __init__(self) -> None:
        self.streams: set[object] = set()
        self.changes = 0

    def add_others(self, others: object) -> None:
        """Ask none of them."""

    def others_changed(self) -> None:
        """Count it."""
        self.changes += 1

    def joined(self, stream: object, topic: object) -> None:
        self.streams.add(stream)

    def left(self, stream: object) -> None:
        self.streams.discard(stream)


class Client:
    """A connection."""

    is_gone = False


def groups_of(producers: FakeProducers) -> ProducerGroups:
    view: Any = None
    return ProducerGroups(
        producers,  # type: ignore[arg-type]
        view,
        store=lambda: Store.of("127.0.0.1", 1),
        max_groups=100,
        max_groups_per_client=MOST,
        metrics=Metrics.disabled(),
    )


def test_a_connection_has_so_many_groups() -> None:
    """A further group is refused and not kept; a group that left makes room, others have theirs."""
    producers = FakeProducers()
    groups = groups_of(producers)
    client: Any = Client()
    other: Any = Client()
    for name in ("a", "b", "a"):
        groups.check_half(client, name)
        groups.sent_half(client, name, TOPIC)
    with pytest.raises(RemotingRefusal, match=r"max_groups_per_client"):
        groups.check_half(client, "c")
    groups.sent_half(client, "c", TOPIC)
    assert len(producers.streams) == MOST
    groups.check_half(other, "c")
    groups.left(client, "a")
    groups.check_half(client, "c")


@pytest.mark.parametrize("name", ["", "g" * 256])
def test_a_producer_group_has_a_name_of_some_length(name: str) -> None:
    """Names are kept, so that they are bounded; without a name nobody could be asked."""
    client: Any = Client()
    wanted = re.escape(f"has {len(name)} characters; 1 to 255 are allowed")
    with pytest.raises(RemotingRefusal, match=wanted):
        groups_of(FakeProducers()).check_half(client, name)


def test_a_group_that_a_message_names_is_found_by_its_heartbeat() -> None:
    """Only its connections join, only those that may send there, and only while they live."""
    producers = FakeProducers()
    groups = groups_of(producers)
    allowed: Any = Client()
    barred: Any = Client()
    other: Any = Client()
    assert not groups.exist
    groups.heard(allowed, ["payers", "CLIENT_INNER_PRODUCER"], lambda topic: topic == TOPIC[1])
    groups.heard(barred, ["payers"], lambda _: False)
    groups.heard(other, ["sellers"], lambda _: True)
    assert groups.exist
    for name in ("CLIENT_INNER_PRODUCER", "nobody"):
        groups.find(ProducersOf(TOPIC, name))
    groups.find(ProducersOf(("namespace", TOPIC[1]), "payers"))
    assert producers.streams == set()
    groups.find(ProducersOf(TOPIC, "payers"))
    assert len(producers.streams) == 1
    groups.disconnected(allowed)
    assert producers.streams == set()
    groups.heard(barred, [], lambda _: False)
    groups.left(other, "sellers")
    assert not groups.exist
    assert producers.changes == 2


def test_a_client_that_may_not_send_to_a_topic_is_found_for_others() -> None:
    """A heartbeat with fewer rights ends the questions about one topic, not those about others."""
    producers = FakeProducers()
    groups = groups_of(producers)
    client: Any = Client()
    groups.heard(client, ["payers"], lambda _: True)
    groups.find(ProducersOf(TOPIC, "payers"))
    groups.heard(client, ["payers"], lambda topic: topic == "other")
    assert producers.streams == set()
    groups.find(ProducersOf(TOPIC, "payers"))
    assert producers.streams == set()
    groups.find(ProducersOf(("", "other"), "payers"))
    assert len(producers.streams) == 1
    assert producers.changes == 1


def test_a_consumer_alone_has_no_producer_to_ask() -> None:
    """Storage reads no message for a broker that has consumers only."""
    groups = groups_of(FakeProducers())
    client: Any = Client()
    groups.heard(client, ["CLIENT_INNER_PRODUCER"], lambda _: True)
    assert not groups.exist
