"""Subscriptions of lite topics at one broker, while storage takes its time to number them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller
from strata_broker.receives.lite_consumers import LiteConsumer, LiteConsumers, LiteKey
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_mq.requests import Code, RequestError
from strata_testing import ManualClock

CONSUMER_GROUP_ID, TOPIC_ID, QUOTA = 5, 7, 3
PARTIAL_ADD, PARTIAL_REMOVE = definition_pb2.PARTIAL_ADD, definition_pb2.PARTIAL_REMOVE
COMPLETE_ADD, COMPLETE_REMOVE = definition_pb2.COMPLETE_ADD, definition_pb2.COMPLETE_REMOVE


class SlowDirectory:
    """Numbers names when the test says so."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.failure: RequestError | None = None

    async def numbers(self, topic: TopicRow, names: Collection[str]) -> dict[str, int]:
        if names:
            await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return {name: ord(name) for name in names}

    def raft_group(self, topic: TopicRow, name: str) -> int:
        return 1


class Subscriptions:
    """One broker's subscriptions to one parent."""

    def __init__(self) -> None:
        self.directory = SlowDirectory()
        self.consumers = LiteConsumers(ManualClock())
        self.goodbye: Callable[[str], None]
        group = self.group = meta_pb2.ConsumerGroup(consumer_group_id=CONSUMER_GROUP_ID, name="g")
        topic = SimpleNamespace(topic_id=TOPIC_ID, name="parent", is_lite=True)

        async def group_for_use(*_: object) -> meta_pb2.ConsumerGroup:
            return group

        def on_terminated(listener: Callable[[str], None]) -> None:
            self.goodbye = listener

        self.lite = LiteSubscriptions(
            cast(
                "Any",
                SimpleNamespace(topic=lambda *_: topic, consumer_group_for_use=group_for_use),
            ),
            cast("Any", SimpleNamespace(lite=self.directory)),
            self.consumers,
            sessions=cast("Any", SimpleNamespace(on_terminated=on_terminated)),
            telemetry=cast("Any", SimpleNamespace(stream_of=lambda client_id: None)),
            config=BrokerConfig.model_validate({"telemetry": {"lite_subscription_quota": QUOTA}}),
            clock=ManualClock(),
        )

    async def sync(
        self, action: definition_pb2.LiteSubscriptionAction.ValueType, names: str, client: str = "c"
    ) -> None:
        """Take a request; each letter names a lite topic."""
        request = service_pb2.SyncLiteSubscriptionRequest(
            action=action,
            topic=definition_pb2.Resource(name="parent"),
            group=definition_pb2.Resource(name="g"),
            lite_topic_set=names,
        )
        await self.lite.sync(Caller(client, ""), request)

    async def begin(
        self, action: definition_pb2.LiteSubscriptionAction.ValueType, names: str
    ) -> asyncio.Task[None]:
        """Send a request that waits for numbers."""
        task = asyncio.ensure_future(self.sync(action, names))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        return task

    def consumer(self, client: str = "c") -> LiteConsumer | None:
        return self.consumers.find(LiteKey(client, CONSUMER_GROUP_ID, TOPIC_ID))

    @property
    def names(self) -> str:
        """Lite topics that the client has."""
        consumer = self.consumer()
        return "" if consumer is None else "".join(sorted(consumer.places))


@pytest.fixture
def subscriptions() -> Subscriptions:
    return Subscriptions()


@pytest.mark.parametrize(
    ("action", "names"),
    [(PARTIAL_REMOVE, "a"), (COMPLETE_REMOVE, ""), (COMPLETE_ADD, ""), (PARTIAL_ADD, "")],
)
async def test_a_request_that_adds_nothing_is_not_remembered(
    subscriptions: Subscriptions,
    action: definition_pb2.LiteSubscriptionAction.ValueType,
    names: str,
) -> None:
    """However many clients are named."""
    for number in range(100):
        await subscriptions.sync(action, names, f"client-{number}")
    assert not subscriptions.consumers._consumers
    assert not subscriptions.consumers._by_client


async def test_clients_that_gave_everything_up_are_not_remembered(
    subscriptions: Subscriptions,
) -> None:
    """They have no room in any limit, so nothing else would bound them."""
    subscriptions.directory.may_answer.set()
    for number, (action, names) in enumerate(
        ((PARTIAL_REMOVE, "ab"), (COMPLETE_ADD, ""), (COMPLETE_REMOVE, ""))
    ):
        client = f"c{number}"
        await subscriptions.sync(PARTIAL_ADD, "ab", client)
        await subscriptions.sync(PARTIAL_REMOVE, "b", client)
        assert subscriptions.consumer(client) is not None
        await subscriptions.sync(action, names, client)
        assert subscriptions.consumer(client) is None, action
    assert subscriptions.consumers.count == 0


async def test_a_client_whose_only_lite_topic_another_one_claims_is_not_remembered(
    subscriptions: Subscriptions,
) -> None:
    """In an exclusive consumer group the last one has it."""
    subscriptions.directory.may_answer.set()
    subscriptions.group.lite_exclusive = True
    await subscriptions.sync(PARTIAL_ADD, "a", "before")
    await subscriptions.sync(PARTIAL_ADD, "a", "after")
    assert subscriptions.consumer("before") is None
    assert subscriptions.consumer("after") is not None


async def test_a_client_that_said_goodbye_is_not_subscribed_again(
    subscriptions: Subscriptions,
) -> None:
    """Its request was waiting for numbers."""
    adds = await subscriptions.begin(PARTIAL_ADD, "ab")
    subscriptions.goodbye("c")
    subscriptions.directory.may_answer.set()
    await adds
    assert subscriptions.consumer() is None
    assert subscriptions.consumers.count == 0


async def test_requests_at_the_same_time_do_not_pass_the_quota(
    subscriptions: Subscriptions,
) -> None:
    """Names whose numbers are asked for count already."""
    adds = await subscriptions.begin(PARTIAL_ADD, "ab")
    again = await subscriptions.begin(PARTIAL_ADD, "bc")
    with pytest.raises(RequestError) as refused:
        await subscriptions.sync(PARTIAL_ADD, "d")
    assert refused.value.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    subscriptions.directory.may_answer.set()
    await asyncio.gather(adds, again)
    assert subscriptions.names == "abc"
    assert subscriptions.consumers.count == QUOTA


async def test_the_quota_of_a_client_is_for_all_its_consumer_groups(
    subscriptions: Subscriptions,
) -> None:
    """Else one client takes the room of all others. Another client has its own."""
    subscriptions.directory.may_answer.set()
    await subscriptions.sync(PARTIAL_ADD, "ab")
    subscriptions.group.consumer_group_id += 1
    with pytest.raises(RequestError) as refused:
        await subscriptions.sync(PARTIAL_ADD, "ab")
    assert refused.value.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert subscriptions.consumers.count == 2
    await subscriptions.sync(PARTIAL_ADD, "a")
    # A repeat of all of them is none too many, also of those of one consumer group.
    await subscriptions.sync(COMPLETE_ADD, "b")
    await subscriptions.sync(PARTIAL_ADD, "abc", "other")
    assert subscriptions.consumers.count == 2 * QUOTA


@pytest.mark.parametrize(
    ("action", "names", "left"),
    [(PARTIAL_REMOVE, "a", "b"), (COMPLETE_REMOVE, "", ""), (COMPLETE_ADD, "b", "b")],
)
async def test_what_is_removed_meanwhile_is_not_added(
    subscriptions: Subscriptions,
    action: definition_pb2.LiteSubscriptionAction.ValueType,
    names: str,
    left: str,
) -> None:
    """The later request has the last word."""
    adds = await subscriptions.begin(PARTIAL_ADD, "ab")
    later = asyncio.ensure_future(subscriptions.sync(action, names))
    for _ in range(5):
        await asyncio.sleep(0)
    subscriptions.directory.may_answer.set()
    await asyncio.gather(adds, later)
    assert subscriptions.names == left
    assert subscriptions.consumers.count == len(left)


async def test_names_that_got_no_number_take_no_room(subscriptions: Subscriptions) -> None:
    """Neither after a failure nor when the call was cut off."""
    subscriptions.directory.failure = RequestError(Code.TOO_MANY_REQUESTS, "later")
    fails = await subscriptions.begin(PARTIAL_ADD, "ab")
    cut_off = await subscriptions.begin(PARTIAL_ADD, "bc")
    cut_off.cancel()
    subscriptions.directory.may_answer.set()
    results = await asyncio.gather(fails, cut_off, return_exceptions=True)
    assert [type(one) for one in results] == [RequestError, asyncio.CancelledError]
    assert subscriptions.consumer() is None
    assert subscriptions.consumers.count == 0
    subscriptions.directory.failure = None
    await subscriptions.sync(PARTIAL_ADD, "xyz")
    assert subscriptions.names == "xyz"
