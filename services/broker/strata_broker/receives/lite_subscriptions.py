"""SyncLiteSubscription: which lite topics a client wants, told to every broker.

Role: checks, quotas, versions, exclusive consumer groups. Subscriptions are state of a client and
never stored: clients repeat all of them every 30 s. A client receives from any broker and tells one
broker or all, so the broker that is told tells the other ones. Invariants: a request that is
refused changes nothing here; a subscription with an older version than the last one changes
nothing; what is removed while its number is asked for is not added; in an exclusive consumer
group, one client at most has a lite topic at this broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.config import BrokerConfig
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.sessions import Sessions
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import Caller, use_of
from strata_broker.receives.lite_consumers import LiteConsumer, LiteConsumers, LiteKey
from strata_broker.storage_client.quiet_places import ConsumerPlace
from strata_broker.storage_client.storage_tier import StorageTier
from strata_mq.requests import Code, RequestError, check_consumer_group, check_lite_topic
from strata_runtime.clock import Clock

_RPC = "SyncLiteSubscription"
# Between two searches for clients that are silent.
_SWEEP_S = 10.0

_ADDS = frozenset((definition_pb2.PARTIAL_ADD, definition_pb2.COMPLETE_ADD))

TellOthers = Callable[[peer_pb2.SyncLiteRequest], Awaitable[None]]
"""Tells the other brokers of a subscription; those that do not answer hear of it from the client's
next repeat."""


class LiteSubscriptions:
    """See the module docstring. Used on the event loop only.

    Attributes:
        tell_others: set when the other brokers are known.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        storage: StorageTier,
        consumers: LiteConsumers,
        *,
        sessions: Sessions,
        telemetry: Telemetry,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._provisioner = provisioner
        self._storage = storage
        self._consumers = consumers
        self._telemetry = telemetry
        self._config = config
        self._limits = config.limits()
        self._clock = clock
        self._swept_s = clock.monotonic_s()
        self.tell_others: TellOthers | None = None
        consumers.on_lost = self._notify
        sessions.on_terminated(consumers.drop_client)

    async def sync(self, caller: Caller, request: service_pb2.SyncLiteSubscriptionRequest) -> None:
        """Take a client's request, here and at the other brokers.

        Raises:
            RequestError: ILLEGAL_TOPIC, the topic is not of type LITE; ILLEGAL_CONSUMER_GROUP, the
                consumer group is bound to another topic; ILLEGAL_LITE_TOPIC;
                LITE_SUBSCRIPTION_QUOTA_EXCEEDED; or why the topic, the consumer group or a lite
                topic cannot be used.
        """
        check_consumer_group(request.group.name)
        topic = self._provisioner.topic(*caller.name_of(request.topic))
        group_name = caller.name_of(request.group)
        self._check_topic(topic)
        group = await self._provisioner.consumer_group_for_use(*group_name, use_of(caller, _RPC))
        if group.lite_topic and group.lite_topic != topic.name:
            raise RequestError(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"consumer group {group.name} is bound to the topic {group.lite_topic}",
            )
        await self._take(caller.client_id, group, topic, request, starts=True)
        if self.tell_others is not None:
            await self.tell_others(
                peer_pb2.SyncLiteRequest(
                    client_id=caller.client_id,
                    namespace=caller.namespace,
                    request=request.SerializeToString(),
                )
            )

    async def told(self, told: peer_pb2.SyncLiteRequest) -> None:
        """Take a request that another broker had.

        Raises:
            DecodeError: the request is not one.
            RequestError: see `sync`.
        """
        request = service_pb2.SyncLiteSubscriptionRequest.FromString(told.request)
        caller = Caller(told.client_id, told.namespace)
        topic = self._provisioner.topic(*caller.name_of(request.topic))
        group = self._provisioner.view.consumer_group(*caller.name_of(request.group))
        self._check_topic(topic)
        if group is not None:
            await self._take(told.client_id, group, topic, request, starts=False)

    def _check_topic(self, topic: TopicRow) -> None:
        if not topic.is_lite:
            raise RequestError(Code.ILLEGAL_TOPIC, f"topic {topic.name} is not of type LITE")

    async def _take(
        self,
        client_id: str,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        request: service_pb2.SyncLiteSubscriptionRequest,
        *,
        starts: bool,
    ) -> None:
        """Carry out a request here; if `starts`, also where the consumer group begins.

        Raises:
            RequestError: nothing was added; and nothing was removed, if the request is refused.
        """
        self._sweep()
        key = LiteKey(client_id, group.consumer_group_id, topic.topic_id)
        consumer = self._check_and_remove(key, request)
        if consumer is None:
            return
        consumer.exclusive = group.lite_exclusive
        names = dict.fromkeys(request.lite_topic_set)
        new = [name for name in names if name not in consumer.places]
        expected = self._consumers.expect(consumer, new)
        try:
            places = await self._places(key, topic, new)
            if new and starts and request.HasField("offset_option"):
                await self._start_at(group, topic, places, request.offset_option)
            self._subscribe(consumer, places, request.action, exclusive=group.lite_exclusive)
        finally:
            self._consumers.release(consumer, new, expected)

    async def _places(
        self, key: LiteKey, topic: TopicRow, names: Collection[str]
    ) -> Mapping[str, ConsumerPlace]:
        numbers = await self._storage.lite.numbers(topic, names)
        raft_group = self._storage.lite.raft_group
        return {
            name: ConsumerPlace(
                raft_group(topic, name), key.topic_id, key.consumer_group_id, numbers[name]
            )
            for name in names
        }

    def _check_and_remove(
        self, key: LiteKey, request: service_pb2.SyncLiteSubscriptionRequest
    ) -> LiteConsumer | None:
        """Check a request and carry out what it removes; return whose lite topics it adds to.

        Returns:
            None: it adds nothing. A client without lite topics is not remembered.

        Raises:
            RequestError: nothing was changed.
        """
        names = list(dict.fromkeys(request.lite_topic_set))
        adds = request.action in _ADDS and bool(names)
        consumer = self._consumers.find(key)
        version = request.version if request.HasField("version") else 0
        if consumer is not None and version and version < consumer.version:
            return None
        if adds:
            self._check_room(key, consumer, names, complete=_is_complete(request.action))
        elif consumer is None:
            return None
        consumer = self._consumers.heard(key)
        consumer.version = version or consumer.version
        if request.action == definition_pb2.COMPLETE_REMOVE:
            self._consumers.drop(consumer)
        elif request.action == definition_pb2.PARTIAL_REMOVE:
            self._consumers.remove(consumer, names)
        elif _is_complete(request.action):
            # Before anything is waited for: a later request may add what is not in this one.
            others = (consumer.places.keys() | consumer.coming.keys()) - set(names)
            self._consumers.remove(consumer, others)
        if adds:
            return consumer
        self._consumers.forget_empty(consumer)
        return None

    def _check_room(
        self,
        key: LiteKey,
        consumer: LiteConsumer | None,
        names: Collection[str],
        *,
        complete: bool,
    ) -> None:
        for name in names:
            check_lite_topic(self._limits, name)
        known = set() if consumer is None else consumer.places.keys() | consumer.coming.keys()
        new = [name for name in names if name not in known]
        total = self._consumers.count_of(key.client_id) + len(new)
        if complete:
            total -= len(known - set(names))
        quota = self._config.telemetry.lite_subscription_quota
        if total > quota:
            raise RequestError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"a client may subscribe to {quota} lite topics, these would be {total}",
            )
        most = self._config.lite.max_subscriptions
        if self._consumers.count + len(new) > most:
            raise RequestError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"there are {self._consumers.count} subscriptions of lite topics already, at most "
                f"{most} are allowed (lite.max_subscriptions)",
            )

    def _subscribe(
        self,
        consumer: LiteConsumer,
        places: Mapping[str, ConsumerPlace],
        action: definition_pb2.LiteSubscriptionAction.ValueType,
        *,
        exclusive: bool,
    ) -> None:
        """Add what was neither removed nor added while its number was asked for."""
        new = {name: place for name, place in places.items() if name in consumer.coming}
        if exclusive:
            new = {
                name: place
                for name, place in new.items()
                if self._claim(consumer, name, place, is_repeat=_is_complete(action))
            }
        self._consumers.add(consumer, new)

    def _claim(
        self, consumer: LiteConsumer, name: str, place: ConsumerPlace, *, is_repeat: bool
    ) -> bool:
        """Whether a client of an exclusive consumer group gets a lite topic.

        The last client that subscribes gets it. A repeat of all subscriptions claims nothing that
        another client has: this client may not have heard that it lost the lite topic.
        """
        holders = [one for one in self._consumers.of_place(place) if one is not consumer]
        if holders and is_repeat:
            self._notify(consumer.key.client_id, name)
            return False
        for holder in holders:
            self._consumers.remove(holder, (name,))
            self._consumers.forget_empty(holder)
            self._notify(holder.key.client_id, name)
        return True

    def _notify(self, client_id: str, name: str) -> None:
        """Tell a client that it is not subscribed to a lite topic any more."""
        stream = self._telemetry.stream_of(client_id)
        if stream is not None:
            frame = service_pb2.TelemetryCommand(status=errors.ok_status())
            frame.notify_unsubscribe_lite_command.lite_topic = name
            stream.push(frame.SerializeToString())

    async def _start_at(
        self,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        new: Mapping[str, ConsumerPlace],
        option: definition_pb2.OffsetOption,
    ) -> None:
        """Let a consumer group begin new lite topics where the client says.

        Raises:
            RequestError: BAD_REQUEST, a number is negative; or storage did not do it.
        """
        kind = option.WhichOneof("offset_type")
        if kind is None or (kind == "policy" and option.policy == definition_pb2.OffsetOption.LAST):
            return
        by_group: defaultdict[int, list[int]] = defaultdict(list)
        for place in new.values():
            by_group[place.raft_group].append(place.queue)
        for raft_group, queues in by_group.items():
            request = storage_pb2.ResetConsumerRequest(
                raft_group=raft_group,
                consumer_group_id=group.consumer_group_id,
                topic=_topic_ref(topic),
                queues=queues,
            )
            if kind == "policy":
                if option.policy == definition_pb2.OffsetOption.MIN:
                    request.earliest = True
                else:
                    request.latest = True
            elif kind == "tail_n":
                await self._start_at_tail(request, option.tail_n)
                continue
            elif getattr(option, kind) < 0:
                raise RequestError(Code.BAD_REQUEST, "the offset option is negative")
            elif kind == "offset":
                request.offset = option.offset
            else:
                request.time_ms = option.timestamp
            await self._reset(request)

    async def _start_at_tail(self, request: storage_pb2.ResetConsumerRequest, count: int) -> None:
        if count < 0:
            raise RequestError(Code.BAD_REQUEST, "the offset option is negative")
        request.latest = True
        response = await self._reset(request)
        for state in response.queues:
            request.offset = max(state.min_offset, state.next_offset - count)
            request.queues[:] = (state.queue,)
            await self._reset(request)

    async def _reset(
        self, request: storage_pb2.ResetConsumerRequest
    ) -> storage_pb2.ResetConsumerResponse:
        return await self._storage.client.call(
            request.raft_group, "ResetConsumer", request, storage_pb2.ResetConsumerResponse
        )

    def _sweep(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._swept_s + _SWEEP_S:
            self._swept_s = now_s
            self._consumers.drop_silent(self._config.lite.silent_ms / 1000)


def _is_complete(action: definition_pb2.LiteSubscriptionAction.ValueType) -> bool:
    return action == definition_pb2.COMPLETE_ADD


def _topic_ref(topic: TopicRow) -> storage_pb2.TopicRef:
    return storage_pb2.TopicRef(
        topic_id=topic.topic_id, slot_base=topic.slot_base, queue_count=topic.queue_count
    )
