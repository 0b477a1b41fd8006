"""A popper over storage in memory, for tests of where receives look and when they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from strata.storage.v1 import storage_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.popper import Popper
from strata_broker.receives.serving_order import ServingOrders
from strata_broker.receives.targets import Popped
from strata_broker.receives.waiting_room import WaitingRoom
from strata_broker.storage_client.quiet_places import ConsumerPlace, QuietPlaces
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Metrics

NODE = "storage"
STREAM = 1


class FakeLeaders:
    """Leaders of raft groups: one node, until a test says otherwise."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.listeners: list[Callable[[int, str], None]] = []

    def node_of(self, raft_group: int) -> str | None:
        return self.leaders.get(raft_group, NODE)

    def on_leader(self, listener: Callable[[int, str], None]) -> None:
        self.listeners.append(listener)

    def elect(self, raft_group: int, node: str) -> None:
        self.leaders[raft_group] = node
        for listener in self.listeners:
            listener(raft_group, node)


def new_quiet(leaders: FakeLeaders, clock: Clock | None = None, **config: int) -> QuietPlaces:
    """Return quiet places with one open stream."""
    section = StorageClientSection.model_validate(config)
    quiet = QuietPlaces(
        leaders,  # type: ignore[arg-type]
        section,
        clock=clock or SystemClock(),
        metrics=Metrics.disabled(),
    )
    quiet.opened(NODE, STREAM)
    return quiet


def new_popper(
    view: MetadataView,
    storage: Any,
    quiet: QuietPlaces | None = None,
    clock: Clock | None = None,
    **config: int,
) -> Popper:
    """Return a popper with short pauses."""
    section = ReceiveSection.model_validate({"moved_pause_ms": 1, "max_look_pause_ms": 4} | config)
    clock = clock or SystemClock()
    room = WaitingRoom(
        new_quiet(FakeLeaders()) if quiet is None else quiet,
        section,
        clock=clock,
        metrics=Metrics.disabled(),
    )
    orders = ServingOrders(section, Metrics.disabled())
    # No test of this popper has a topic of type LITE.
    lite = cast("LitePopper", None)
    return Popper(view, storage, room, orders=orders, lite=lite, config=section, clock=clock)


def deliverable(*places: ConsumerPlace) -> Iterable[storage_pb2.DeliverablePlace]:
    """Return what a node tells."""
    return [storage_pb2.DeliverablePlace(**place._asdict()) for place in places]


def waits_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let receives find nothing at once; return how long they would have waited, in ms."""
    waits: list[int] = []

    async def pop(
        popper: Popper, target: object, pop_for: object, wait_ms: int, ticket: object
    ) -> Popped:
        waits.append(wait_ms)
        return Popped(1, storage_pb2.PopResponse())

    monkeypatch.setattr(Popper, "pop", pop)
    return waits
