"""Operators' requests about topics, consumer groups and lag.

Role: the work behind `strata.admin.v1`. It forwards writes to the nameserver and waits until this
broker shows them; it asks all raft groups concerned (`HolderCalls`) and merges their answers.
Failures are `RequestError`, `MetaRefused` or `AngeliaError`; the servicers choose the gRPC status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.peers import BrokerPeers
from strata_broker.clients.provision import consumer_group_not_found, topic_not_found
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.quotas import CONSUMER_GROUPS, TOPICS, Quotas
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.operators.drops import Dropper
from strata_broker.operators.topic_consumers import stored_consumers
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client import epochs
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_metadata.client import MetadataClient
from strata_mq.requests import Code, RequestError, check_new_topic


class Operations:
    """See the module docstring."""

    def __init__(
        self,
        shown: ShownRevisions,
        meta: MetadataClient,
        holders: HolderCalls,
        *,
        dropper: Dropper,
        peers: BrokerPeers,
        resets: GroupResets,
        quotas: Quotas,
        config: BrokerConfig,
    ) -> None:
        self._quotas = quotas
        self._view = shown.view
        self._meta = meta
        self._holders = holders
        self._dropper = dropper
        self._peers = peers
        self._resets = resets
        self._shown = shown
        self._timeout_s = config.metadata.call_timeout_ms / 1000

    # Topics

    async def create_topic(self, topic: meta_pb2.Topic) -> meta_pb2.Topic:
        """Create a topic; the brokers serve it when the call returns."""
        request = meta_pb2.CreateTopicRequest(topic=topic)
        with self._quotas.creating(TOPICS, topic.namespace):
            response = await self._meta.call("CreateTopic", request, meta_pb2.CreateTopicResponse)
            await self._see(response.topic.revision)
        return response.topic

    async def create_topics(
        self, topics: Sequence[meta_pb2.Topic]
    ) -> admin_pb2.CreateTopicsResponse:
        """Create topics by one change; the brokers serve them when the call returns.

        Raises:
            RequestError: TOO_MANY_REQUESTS: with these a namespace would exceed its quota; no topic
                is created.
        """
        failures: dict[int, str] = {}
        for position, topic in enumerate(topics):
            try:
                check_new_topic(topic.name)
            except RequestError as error:
                failures[position] = error.text
        asked = [position for position in range(len(topics)) if position not in failures]
        created = existing = 0
        if asked:
            response = await self._create_topics([topics[position] for position in asked])
            created, existing = response.created, response.existing
            failures |= {asked[each.position]: each.reason for each in response.failures}
        return admin_pb2.CreateTopicsResponse(
            created=created,
            existing=existing,
            failures=(
                admin_pb2.TopicFailure(
                    position=position,
                    namespace=topics[position].namespace,
                    name=topics[position].name,
                    reason=reason,
                )
                for position, reason in sorted(failures.items())
            ),
        )

    async def update_topic(
        self, topic: meta_pb2.Topic, update_mask: Sequence[str]
    ) -> meta_pb2.Topic:
        """Change a topic; the change holds on the brokers when the call returns."""
        request = meta_pb2.UpdateTopicRequest(topic=topic, update_mask=update_mask)
        response = await self._meta.call("UpdateTopic", request, meta_pb2.UpdateTopicResponse)
        await self._see(response.topic.revision)
        return response.topic

    async def delete_topic(self, namespace: str, name: str) -> None:
        """Delete a topic, then its data; data that cannot be dropped now is dropped later."""
        topic = self._view.topic(namespace, name)
        request = meta_pb2.DeleteTopicRequest(namespace=namespace, name=name)
        await self._meta.call("DeleteTopic", request, meta_pb2.DeleteTopicResponse)
        if topic is not None:
            # By its id: somebody else may have made the name again.
            await self._until(lambda: self._view.topic_by_id(topic.topic_id) is None)
            await self._dropper.drop(meta_pb2.TOMBSTONE_KIND_TOPIC, topic.topic_id)

    async def purge_topic(self, topic: TopicRow) -> int:
        """Delete the messages that a topic has now; return how many.

        Messages that are sent meanwhile stay, and so do delayed messages that are not due and
        transactions without an end: they are in no queue yet.

        Raises:
            RequestError: refused, or not answered in time; then some may be deleted.
        """
        ends = {status.queue: status.next_offset for status in await self.queue_statuses(topic)}

        def purge_of(raft_group: int, queues: Sequence[int]) -> storage_pb2.PurgeRequest:
            return storage_pb2.PurgeRequest(
                raft_group=raft_group,
                topic=topic_ref(topic),
                starts=(
                    storage_pb2.QueueStart(queue=queue, offset=ends[queue])
                    for queue in queues
                    if queue in ends
                ),
            )

        answers = await self._holders.of_topic(topic, "Purge", storage_pb2.PurgeResponse, purge_of)
        return sum(answer.deleted_messages for _, answer in answers)

    async def queue_statuses(self, topic: TopicRow) -> list[admin_pb2.QueueStatus]:
        """Return the place and the content of each queue of a topic, by number."""
        answers = await self._holders.of_topic(
            topic,
            "GetOffsets",
            storage_pb2.GetOffsetsResponse,
            lambda raft_group, queues: storage_pb2.GetOffsetsRequest(
                raft_group=raft_group, topic=topic_ref(topic), queues=queues
            ),
        )
        names = {
            queue: home.broker_name for home in self._view.homes(topic) for queue in home.queues
        }
        overrides = self._view.overrides(topic)
        statuses: dict[int, admin_pb2.QueueStatus] = {}
        for raft_group, answer in answers:
            for queue in answer.queues:
                status = admin_pb2.QueueStatus(
                    queue=queue.queue,
                    raft_group=self._view.owner(topic, queue.queue),
                    broker_name=names.get(queue.queue, self._broker_name(raft_group)),
                    min_offset=queue.min_offset,
                    next_offset=queue.next_offset,
                    last_store_time_ms=queue.last_store_time_ms,
                    moving=_is_moving(overrides.get(queue.queue)),
                )
                before = statuses.setdefault(queue.queue, status)
                if before is not status:
                    epochs.join_offsets(before, status)
        return [statuses[number] for number in sorted(statuses)]

    # Consumer groups

    async def create_consumer_group(self, group: meta_pb2.ConsumerGroup) -> meta_pb2.ConsumerGroup:
        """Create a consumer group; the brokers serve it when the call returns."""
        with self._quotas.creating(CONSUMER_GROUPS, group.namespace):
            response = await self._meta.call(
                "CreateConsumerGroup",
                meta_pb2.CreateConsumerGroupRequest(consumer_group=group),
                meta_pb2.CreateConsumerGroupResponse,
            )
            await self._see(response.consumer_group.revision)
        return response.consumer_group

    async def update_consumer_group(
        self, group: meta_pb2.ConsumerGroup, update_mask: Sequence[str]
    ) -> meta_pb2.ConsumerGroup:
        """Change a consumer group; the change holds on the brokers when the call returns."""
        response = await self._meta.call(
            "UpdateConsumerGroup",
            meta_pb2.UpdateConsumerGroupRequest(consumer_group=group, update_mask=update_mask),
            meta_pb2.UpdateConsumerGroupResponse,
        )
        await self._see(response.consumer_group.revision)
        return response.consumer_group

    async def delete_consumer_group(self, namespace: str, name: str) -> None:
        """Delete a consumer group with its dead-letter topic, then their data."""
        group = self._view.consumer_group(namespace, name)
        request = meta_pb2.DeleteConsumerGroupRequest(namespace=namespace, name=name)
        await self._meta.call("DeleteConsumerGroup", request, meta_pb2.DeleteConsumerGroupResponse)
        if group is None:
            return
        group_id = group.consumer_group_id
        await self._until(lambda: self._view.consumer_group_by_id(group_id) is None)
        drop = self._dropper.drop
        await drop(meta_pb2.TOMBSTONE_KIND_CONSUMER_GROUP, group.consumer_group_id)
        if group.dead_letter_topic_id:
            await drop(meta_pb2.TOMBSTONE_KIND_TOPIC, group.dead_letter_topic_id)

    def consumer_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup:
        """Return a consumer group.

        Raises:
            RequestError: CONSUMER_GROUP_NOT_FOUND.
        """
        group = self._view.consumer_group(namespace, name)
        if group is None:
            raise consumer_group_not_found(name)
        return group

    async def consumer_lags(
        self, group: meta_pb2.ConsumerGroup
    ) -> list[admin_pb2.ConsumerQueueLag]:
        """Return the progress of a consumer group on every queue of every topic it consumes."""
        lags: list[admin_pb2.ConsumerQueueLag] = []
        for topic in await self.consumed_topics(group):
            lags.extend(_lag(topic, state) for state in await self.consumer_states(group, topic))
        return lags

    async def reset_consumer_group(
        self, request: admin_pb2.ResetConsumerGroupRequest
    ) -> list[admin_pb2.ConsumerQueueLag]:
        """Move a consumer group's cursors on all it consumes, one topic or some of its queues.

        Raises:
            RequestError: unknown names, no target, or queues without their topic.
        """
        target = request.WhichOneof("to")
        if target is None:
            raise RequestError(
                Code.BAD_REQUEST, "no target: a reset names earliest, latest, a time or an offset"
            )
        if request.queues and not request.topic:
            raise RequestError(Code.BAD_REQUEST, "queues without a topic: name the topic, too")
        group = self.consumer_group(request.namespace, request.name)
        if request.topic:
            topics = [self.topic(request.namespace, request.topic)]
        else:
            topics = await self.consumed_topics(group)
        lags: list[admin_pb2.ConsumerQueueLag] = []
        for topic in topics:
            reset = storage_pb2.ResetConsumerRequest(
                consumer_group_id=group.consumer_group_id, topic=topic_ref(topic)
            )
            setattr(reset, target, getattr(request, target))
            lags.extend(await self._reset_members(group, topic, reset, request.queues))
        return lags

    async def _reset_members(
        self,
        group: meta_pb2.ConsumerGroup,
        topic: TopicRow,
        reset: storage_pb2.ResetConsumerRequest,
        queues: Sequence[int],
    ) -> list[admin_pb2.ConsumerQueueLag]:
        """Reset some queues of a topic, and tell members that keep positions of their own."""
        self._check_queues(topic, queues)
        if group.namespace:
            return await self._reset(topic, reset, queues)
        if queues:
            moved: Iterable[int] = set(queues)
        else:
            moved = self._view.holders(topic) if topic.is_dead_letter else range(topic.queue_count)
        async with self._resets.resetting(group.name, topic.name, sorted(moved)) as offsets:
            lags = await self._reset(topic, reset, queues)
            offsets.update((lag.queue, lag.cursor) for lag in lags)
        return lags

    async def forget_subscription(self, group: meta_pb2.ConsumerGroup, topic: TopicRow) -> None:
        """Delete the state of a consumer group on a topic, as if it had never consumed it."""
        reset = storage_pb2.ResetConsumerRequest(
            consumer_group_id=group.consumer_group_id, topic=topic_ref(topic), forget=True
        )
        await self._reset(topic, reset)

    def topic(self, namespace: str, name: str) -> TopicRow:
        """Return a topic.

        Raises:
            RequestError: TOPIC_NOT_FOUND.
        """
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    async def consumer_states(
        self, group: meta_pb2.ConsumerGroup, topic: TopicRow, *, times: bool = False
    ) -> list[storage_pb2.ConsumerQueueState]:
        """Return where a consumer group is on each queue of a topic, with store times if asked."""
        answers = await self._holders.of_topic(
            topic,
            "GetConsumerState",
            storage_pb2.GetConsumerStateResponse,
            lambda raft_group, queues: storage_pb2.GetConsumerStateRequest(
                raft_group=raft_group,
                consumer_group_id=group.consumer_group_id,
                topic=topic_ref(topic),
                queues=queues,
                times=times,
            ),
        )
        return epochs.join_states(state for _, answer in answers for state in answer.queues)

    async def _reset(
        self, topic: TopicRow, reset: storage_pb2.ResetConsumerRequest, queues: Sequence[int] = ()
    ) -> list[admin_pb2.ConsumerQueueLag]:
        """Reset some queues of a topic; none: all of them."""

        def reset_of(raft_group: int, queues: Sequence[int]) -> storage_pb2.ResetConsumerRequest:
            one = storage_pb2.ResetConsumerRequest()
            one.CopyFrom(reset)
            one.raft_group = raft_group
            one.queues.extend(queues)
            return one

        self._check_queues(topic, queues)
        response_type = storage_pb2.ResetConsumerResponse
        if queues:
            answers = []
            for queue in sorted(set(queues)):
                request_for = partial(reset_of, queues=(queue,))
                answers += await self._holders.of_queue(
                    topic, queue, "ResetConsumer", response_type, request_for
                )
        else:
            answers = await self._holders.of_topic(topic, "ResetConsumer", response_type, reset_of)
        states = epochs.join_states(state for _, answer in answers for state in answer.queues)
        return [_lag(topic, state) for state in states]

    def _check_queues(self, topic: TopicRow, queues: Sequence[int]) -> None:
        """Check that a topic has queues; those of dead letters have the numbers of raft groups."""
        if topic.is_dead_letter:
            known = self._view.holders(topic)
            shown = ", ".join(map(str, known))
            text = f"topic {topic.name} has a queue in each raft group, with its number: {shown}"
            unknown = any(queue not in known for queue in queues)
        else:
            text = f"topic {topic.name} has {topic.queue_count} queues, from 0"
            unknown = any(queue >= topic.queue_count for queue in queues)
        if unknown:
            raise RequestError(Code.NOT_FOUND, text)

    async def consumed_topics(self, group: meta_pb2.ConsumerGroup) -> list[TopicRow]:
        """Return the topics a consumer group has state of, or a live member subscribes to, by name.

        Only storage knows the topics with state; a broker keeps no such list.
        """
        topics = {topic.topic_id: topic for topic in await self.stored_topics(group)}
        for client in await self._peers.members((group.namespace, group.name)):
            for name in client.subscriptions:
                topic = self._view.topic(group.namespace, name)
                if topic is not None:
                    topics[topic.topic_id] = topic
        return sorted(topics.values(), key=lambda topic: topic.name)

    async def stored_topics(self, group: meta_pb2.ConsumerGroup) -> list[TopicRow]:
        """Return the topics a consumer group has state of, by name."""
        answers = await self._holders.of_raft_groups(
            [row.raft_group for row in self._view.raft_groups()],
            "GetConsumerTopics",
            storage_pb2.GetConsumerTopicsResponse,
            lambda raft_group: storage_pb2.GetConsumerTopicsRequest(
                raft_group=raft_group, consumer_group_id=group.consumer_group_id
            ),
        )
        numbers = {number for _, answer in answers for number in answer.topic_ids}
        found = map(self._view.topic_by_id, numbers)
        # A topic that the metadata does not have is about to be dropped in storage too.
        return sorted((topic for topic in found if topic is not None), key=lambda one: one.name)

    async def stored_consumer_groups(self, topic: TopicRow) -> list[meta_pb2.ConsumerGroup]:
        """Return the consumer groups that have state of a topic, by id.

        Raises:
            RequestError: a raft group did not answer.
        """
        numbers = await stored_consumers(self._view, self._holders, topic)
        found = map(self._view.consumer_group_by_id, sorted(numbers))
        return [group for group in found if group is not None]

    async def _create_topics(
        self, topics: Sequence[meta_pb2.Topic]
    ) -> meta_pb2.CreateTopicsResponse:
        request = meta_pb2.CreateTopicsRequest(topics=topics)
        known = self._view.topics()
        new = Counter(
            topic.namespace for topic in topics if (topic.namespace, topic.name) not in known
        )
        with ExitStack() as counted:
            for namespace, count in new.items():
                counted.enter_context(self._quotas.creating(TOPICS, namespace, count))
            response = await self._meta.call("CreateTopics", request, meta_pb2.CreateTopicsResponse)
            await self._see(response.revision)
        return response

    async def _see(self, revision: int) -> None:
        """Wait until this broker and the others know a change, within the time of a call."""
        if await self._view.wait_for_revision(revision, self._timeout_s):
            await self._shown.everywhere()

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait until the view shows a deletion, which has no revision of its own."""
        while not true():
            if not await self._view.wait_for_revision(self._view.revision + 1, self._timeout_s):
                return

    def _broker_name(self, raft_group: int) -> str:
        row = self._view.raft_group(raft_group)
        return row.broker_name if row else ""


def _lag(topic: TopicRow, state: storage_pb2.ConsumerQueueState) -> admin_pb2.ConsumerQueueLag:
    return admin_pb2.ConsumerQueueLag(
        topic=topic.name,
        queue=state.queue,
        min_offset=state.min_offset,
        next_offset=state.next_offset,
        cursor=state.cursor,
        in_flight=state.in_flight,
        lag=max(state.next_offset - state.cursor, 0),
    )


def _is_moving(override: meta_pb2.QueueOverride | None) -> bool:
    """Whether a queue is on its way to another raft group, or an earlier epoch still drains."""
    return override is not None and bool(override.moving_to or len(override.epochs) > 1)
