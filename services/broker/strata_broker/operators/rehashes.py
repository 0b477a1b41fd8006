"""Moves message groups to the queues of a topic's new queue count (rule 23).

A topic that got more queues keeps its old queue count in the metadata. Every broker asks the
leaders of the old queues repeatedly whether everything is consumed there. A leader that says yes
takes nothing by the old count any more. Once all leaders have said yes, the nameserver forgets the
old count. A leader repeats its answer, so brokers need not agree on who asks.

A consumer group that does not consume delays a topic until it consumes, is deleted, or retention
has passed: its messages would be delivered out of order. A leader knows the consumer groups that
read the topic in its own raft group; the broker names the others (`TopicConsumers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.operators.topic_consumers import TopicConsumers
from strata_broker.receives.receive import topic_ref
from strata_broker.sends.message_groups import MessageGroups
from strata_broker.storage_client.storage_client import StorageClient
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError
from strata_runtime.backoff import Random
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics


class Rehasher:
    """See the module docstring.

    Args:
        view: topics that got more queues, and where those are.
        groups: learns which queues message groups have left.
        meta: learns when they have left all queues.
        storage: decides.
        consumers: knows the consumer groups whose messages stay in order.
        config: the period.
        random: spreads the rounds of several brokers.
        metrics: shows how many topics wait.
    """

    def __init__(
        self,
        view: MetadataView,
        groups: MessageGroups,
        meta: MetadataClient,
        *,
        storage: StorageClient,
        consumers: TopicConsumers,
        config: MetadataSection,
        random: Random,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._groups = groups
        self._meta = meta
        self._storage = storage
        self._consumers = consumers
        self._timeout_s = config.call_timeout_ms / 1000
        self._period_s = config.rehash_interval_ms / 1000
        self._random = random
        self._log = get_logger("broker")
        metrics.gauge("strata_broker_rehashing_topics", lambda: len(view.rehashing()))

    async def run(self) -> None:
        """Ask until cancelled, one queue after another: there is no hurry."""
        while True:
            await asyncio.sleep(self._period_s * (0.5 + self._random()))
            self._groups.forget_others(self._view.rehashing())
            self._consumers.forget_others(self._view.rehashing())
            for topic in list(self._view.rehashing()):
                await self.rehash(topic)

    async def rehash(self, topic: TopicRow) -> bool:
        """Ask about all queues of a topic's old count; return whether it is forgotten."""
        queues = range(topic.previous_queue_count)
        waiting = [queue for queue in queues if not self._groups.has_left(topic, queue)]
        if waiting and not await self._rehash_queues(topic, waiting):
            return False
        return await self._confirm(topic)

    async def _rehash_queues(self, topic: TopicRow, queues: Sequence[int]) -> bool:
        try:
            consumers = await self._consumers.ordered(topic)
        except RequestError as failure:
            self._warn("consumer groups of a topic are not known", topic, failure)
            return False
        everywhere = True
        for queue in queues:
            if await self._rehash_queue(topic, queue, consumers):
                self._groups.left(topic, queue)
            else:
                everywhere = False
        return everywhere

    async def _rehash_queue(self, topic: TopicRow, queue: int, consumers: Sequence[int]) -> bool:
        """Ask about one queue: first the raft groups that it left, then the one it is in."""
        override = self._view.overrides(topic).get(queue)
        older = [epoch.raft_group for epoch in override.epochs[:-1]] if override else []
        try:
            for raft_group in older:
                if not await self._ask(topic, queue, raft_group, consumers, ended=True):
                    return False
            owner = self._view.owner(topic, queue)
            return await self._ask(topic, queue, owner, consumers, ended=False)
        except RequestError as failure:
            self._warn("message groups stay in a queue", topic, failure, queue=queue)
            return False

    async def _ask(
        self,
        topic: TopicRow,
        queue: int,
        raft_group: int,
        consumers: Sequence[int],
        *,
        ended: bool,
    ) -> bool:
        response = await self._storage.call(
            raft_group,
            "Rehash",
            storage_pb2.RehashRequest(
                raft_group=raft_group,
                topic=topic_ref(topic),
                queue=queue,
                ended=ended,
                consumer_group_ids=consumers,
            ),
            storage_pb2.RehashResponse,
            timeout_s=self._timeout_s,
        )
        return response.done

    async def _confirm(self, topic: TopicRow) -> bool:
        request = meta_pb2.ConfirmRehashedRequest(
            topic_id=topic.topic_id,
            namespace=topic.namespace,
            name=topic.name,
            queue_count=topic.queue_count,
        )
        try:
            await self._meta.call("ConfirmRehashed", request, meta_pb2.ConfirmRehashedResponse)
        except (MetaRefused, AngeliaError, TimeoutError) as failure:
            self._warn("old queue count not forgotten yet", topic, failure)
            return False
        return True

    def _warn(self, text: str, topic: TopicRow, failure: Exception, **more: int) -> None:
        self._log.warning(text, topic=topic.name, **more, reason=one_line(failure))
