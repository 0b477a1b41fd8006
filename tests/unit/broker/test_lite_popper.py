"""Receives of lite topics that wait: who looks when a place may have messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from strata.storage.v1 import storage_pb2
from strata_broker.base.lite_config import LiteSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE, PopPlace, Wanted
from strata_broker.receives.lite_consumers import LiteConsumers, LiteKey
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.targets import Popped, ReceiveTarget
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_testing import until
from tests.unit.broker.popping import FakeLeaders, deliverable, new_quiet
from tests.unit.broker.test_moved_queues import topic as topic
from tests.unit.broker.test_moved_queues import view as view
from tests.unit.broker.test_popper import GROUP, LONG_MS, TellingStorage

CLIENT = "client"


async def test_a_cancelled_receive_passes_on_what_woke_it(
    view: MetadataView, topic: TopicRow
) -> None:
    """The other receive of the client looks, and gets the message."""
    quiet = new_quiet(FakeLeaders())
    storage = TellingStorage(quiet)
    consumers = LiteConsumers(SystemClock())
    popper = LitePopper(
        view,
        cast("Any", SimpleNamespace(client=storage, quiet=quiet, lite=None)),
        consumers=consumers,
        config=LiteSection(),
        clock=SystemClock(),
        metrics=Metrics.disabled(),
    )
    key = LiteKey(CLIENT, GROUP, topic.topic_id)
    place = ConsumerPlace(1, topic.topic_id, GROUP, 1 << 20)
    consumers.add(consumers.heard(key), {"a": place})
    home = view.home(topic, "strata-1")
    assert home is not None
    target = ReceiveTarget(topic, Wanted(home, ANY_QUEUE), GROUP, client_id=CLIENT)

    def request(topic: TopicRow, place: PopPlace) -> storage_pb2.PopRequest:
        return storage_pb2.PopRequest(raft_group=place.raft_group, queue=place.queue)

    def begin(number: int) -> asyncio.Task[Popped]:
        return asyncio.ensure_future(popper.pop(target, request, LONG_MS, PopTicket(number)))

    first = begin(1)
    await until(lambda: len(consumers._waiting.get(key, ())) == 1)
    second = begin(2)
    await until(lambda: len(consumers._waiting.get(key, ())) == 2)
    storage.ready[1].append(4)
    # It wakes the first one, which has not looked yet.
    quiet.told(deliverable(place))
    first.cancel()
    async with asyncio.timeout(10):
        popped = await second
    assert [one.offset for one in popped.response.messages] == [4]
    assert first.cancelled()
