"""Topics that storage is told of, because their producers can be asked about transactions."""

from __future__ import annotations

from typing import cast

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import AccessRefused
from strata_broker.base.config import SessionSection
from strata_broker.clients.producers import AskedStream, Producers, ProducersOf
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.metadata import MetadataView
from strata_mq.requests import Code, RequestError
from strata_testing import ManualClock

TRANSACTION, MIXED = meta_pb2.TOPIC_TYPE_TRANSACTION, meta_pb2.TOPIC_TYPE_MIXED
PLAIN = [f"plain-{number}" for number in range(100)]


class World:
    """Producers of a broker that knows topics."""

    def __init__(self) -> None:
        self.view = MetadataView(max_topics_in_use=20)
        self.producers = Producers(
            self.view, Sessions(SessionSection(), ManualClock()), max_topics_per_client=9
        )
        self.told = 0
        self.producers.on_topics(self._on_topics)
        rows = [meta_pb2.Topic(topic_id=1_000 + at, name=name) for at, name in enumerate(PLAIN)]
        rows.append(meta_pb2.Topic(topic_id=7, name="deals", type=TRANSACTION))
        rows.append(meta_pb2.Topic(topic_id=5, name="mixed", type=MIXED))
        self.put(*rows)

    def _on_topics(self) -> None:
        self.told += 1

    def put(self, *rows: meta_pb2.Topic, deleted: bool = False, snapshot: bool = False) -> None:
        changes = [meta_pb2.Change(topic=row, deleted=deleted) for row in rows]
        self.view.apply(
            meta_pb2.WatchResponse(
                revision=self.view.revision + 1, snapshot=snapshot, changes=changes
            )
        )

    def join(self, *names: str, group: str = "") -> AskedStream:
        stream = cast(AskedStream, object())
        for name in names:
            self.producers.joined(stream, ProducersOf(("", name), group))
        return stream


def test_topics_without_transactions_are_not_looked_up() -> None:
    """A look-up of each would take a second, and evict the rows that sends need."""
    world = World()
    world.join(*PLAIN, "nowhere", "mixed", "deals")
    assert world.producers.topic_ids() == (5, 7)
    assert world.view.topics().in_use == 0


def test_only_producers_of_transactions_are_news() -> None:
    """The first one of a topic and the last one, whatever their groups are."""
    world = World()
    plain = world.join(*PLAIN)
    world.producers.left(plain)
    assert world.told == 0
    first = world.join("deals")
    assert world.told == 1
    second = world.join("deals", group="g")
    world.producers.left(first)
    assert world.told == 1 and world.producers.topic_ids() == (7,)
    world.producers.left(second)
    assert world.told == 2 and world.producers.topic_ids() == ()


def test_what_topics_are_for_is_known_as_their_rows_change() -> None:
    """Producers may come before their topic; a topic that was made anew has another id."""
    world = World()
    world.join("later", "deals")
    world.put(meta_pb2.Topic(topic_id=9, name="later", type=TRANSACTION))
    assert world.producers.topic_ids() == (7, 9)
    world.put(meta_pb2.Topic(topic_id=7, name="deals", type=TRANSACTION), deleted=True)
    assert world.producers.topic_ids() == (9,)
    world.put(meta_pb2.Topic(topic_id=10, name="deals", type=MIXED))
    assert world.producers.topic_ids() == (9, 10)
    world.put(meta_pb2.Topic(topic_id=10, name="deals", type=meta_pb2.TOPIC_TYPE_NORMAL))
    assert world.producers.topic_ids() == (9,)
    world.put(meta_pb2.Topic(topic_id=11, name="deals", type=TRANSACTION), snapshot=True)
    assert world.producers.topic_ids() == (11,)


def test_an_address_has_its_share_of_clients_whatever_they_send() -> None:
    """New client ids with half messages would take the room of all other addresses."""
    limits = SessionSection(max_clients=10, max_clients_per_address=3)
    producers = Producers(MetadataView(), Sessions(limits, ManualClock()), max_topics_per_client=9)
    for number in range(3):
        producers.sent_half(f"c{number}", ("", "deals"), peer=f"10.0.0.1:{number}", user="")
    with pytest.raises(RequestError) as refused:
        producers.sent_half("c3", ("", "deals"), peer="10.0.0.1:3", user="")
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    producers.sent_half("c4", ("", "deals"), peer="10.0.0.2:1", user="")


def test_a_half_message_makes_no_client_of_another_user_a_producer() -> None:
    """Checks of transactions, with their messages, go to producers of the topic."""
    sessions = Sessions(SessionSection(), ManualClock())
    producers = Producers(MetadataView(), sessions, max_topics_per_client=9)
    client = sessions.heard("c1", "10.0.0.1:1", "alice")
    with pytest.raises(AccessRefused):
        producers.sent_half("c1", ("", "deals"), peer="10.0.0.2:1", user="mallory")
    assert not client.transaction_topics
    producers.sent_half("c1", ("", "deals"), peer="10.0.0.1:1", user="alice")
    assert client.transaction_topics == {("", "deals")}
