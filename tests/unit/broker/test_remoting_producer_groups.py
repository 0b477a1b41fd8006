"""Producer groups of remoting clients: how many one connection may have."""

from __future__ import annotations

import re
from typing import Any

import pytest

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
