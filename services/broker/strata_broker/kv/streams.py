"""Watches and exports: streams of a raft group's leader, forwarded to a client.

A watch survives a change of leader: it continues at the new leader behind the last revision that
it sent. An export cannot: the new leader has other items by then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError, Channel
from strata_broker.base import errors
from strata_broker.base.shares import Owner
from strata_broker.base.table_config import KvSection
from strata_broker.kv.writes import SERVICE
from strata_broker.metadata.metadata import TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.servicers.plugins import PluginParts
from strata_kv.names import QUEUE
from strata_mq.layout import text_hash
from strata_mq.requests import Code, RequestError
from strata_runtime.backoff import Backoff
from strata_runtime.timeouts import Timeout

_EXPORT_PAUSE_S = 0.05
# A watch is told how far it came, if there is nothing for it for so long: it goes on from there at
# another broker, while the history still has that revision.
_PROGRESS_S = 1.0
_MOVED = frozenset((storage_pb2.OUTCOME_WRONG_GROUP, storage_pb2.OUTCOME_SEALED))


class Streams:
    """See the module docstring.

    Args:
        parts: of the broker.
        config: limits.

    Attributes:
        watches, exports: under way.
    """

    def __init__(self, parts: PluginParts, config: KvSection) -> None:
        self._cluster = parts.cluster
        self._calls = parts.calls
        self._random = parts.random
        self._config = config
        self._boot_id = parts.boot_id
        self.watches = 0
        self.exports = 0
        # Waits of watches, which end when the broker stops.
        self._waiting: set[Timeout] = set()
        self._has_ended = False

    def end_all(self) -> None:
        """End all watches: their clients continue at another broker."""
        self._has_ended = True
        for waiting in self._waiting:
            waiting.reschedule(0)

    async def watch(
        self, topic: TopicRow, prefix: bytes, from_revision: int, owners: Sequence[Owner] = ()
    ) -> AsyncGenerator[kv_pb2.WatchResponse, None]:
        """Yield changes for as long as the caller wants, and at times how far it came.

        Args:
            topic: the table.
            prefix: of the keys.
            from_revision: the first one; 0: the next one.
            owners: who watches.

        Raises:
            RequestError: PRECONDITION_FAILED, the revision is not kept any more; NOT_FOUND, the
                table was deleted; PROXY_TIMEOUT, the broker stops.
        """
        with self._counted_watch():
            client = self._calls.config.storage_client
            backoff = Backoff(client.first_retry_ms, client.max_retry_ms, self._random)
            next_revision, told_s = from_revision, -math.inf
            while True:
                if self._cluster.view.topic_by_id(topic.topic_id) is None:
                    raise RequestError(Code.NOT_FOUND, "the table was deleted")
                stream = self._follow(topic, prefix, next_revision, owners)
                async with aclosing(stream), aclosing(self._until_ended(stream)) as news:
                    async for told in news:
                        backoff.reset()
                        next_revision = told.revision + 1
                        now_s = self._calls.clock.monotonic_s()
                        if told.changes or now_s >= told_s + _PROGRESS_S:
                            told_s = now_s
                            yield kv_pb2.WatchResponse(changes=told.changes, revision=told.revision)
                await asyncio.sleep(backoff.next_s())

    async def export(
        self, topic: TopicRow, deadline_s: float, owners: Sequence[Owner] = ()
    ) -> AsyncGenerator[kv_pb2.ExportResponse, None]:
        """Yield all items as of one revision; a leader must begin before the deadline.

        Raises:
            RequestError: TOO_MANY_REQUESTS; PROXY_TIMEOUT: there is no leader, or the stream was
                cut; begin again.
        """
        if self.exports >= self._config.max_exports:
            raise errors.too_many_requests("too many exports are under way (kv.max_exports)")
        self.exports += 1
        has_begun = False
        try:
            while not has_begun:
                async with aclosing(self._dump(topic, owners)) as parts:
                    async for told in parts:
                        has_begun = True
                        yield kv_pb2.ExportResponse(
                            items=told.items, revision=told.revision, complete=told.complete
                        )
                if not has_begun:
                    if self._calls.clock.monotonic_s() >= deadline_s:
                        raise errors.timed_out()
                    await asyncio.sleep(_EXPORT_PAUSE_S)
        except AngeliaError as failure:
            text = f"the export was cut: {failure.reason}"
            raise RequestError(Code.PROXY_TIMEOUT, text) from failure
        finally:
            self.exports -= 1

    async def _dump(
        self, topic: TopicRow, owners: Sequence[Owner]
    ) -> AsyncGenerator[kv_storage_pb2.DumpResponse, None]:
        """Yield one leader's items; nothing: the node does not lead, the next one is asked."""
        raft_group = self._cluster.view.owner(topic, QUEUE)
        request = kv_storage_pb2.DumpRequest(
            raft_group=raft_group, table=topic_ref(topic), owner=self._owner(topic, owners)
        )
        leaders = self._cluster.storage.leaders
        asked = leaders.node_of(raft_group) or ""
        stream = self._channel(raft_group).stream(
            SERVICE + "Dump", request, kv_storage_pb2.DumpResponse
        )
        async for told in stream:
            outcome = told.refusal.outcome
            if outcome in errors.REPEATED_OUTCOMES:
                leaders.refused(raft_group, asked, told.refusal.leader_node_id)
                return
            if outcome:
                raise errors.refused(outcome, told.refusal.reason)
            yield told

    async def _follow(
        self, topic: TopicRow, prefix: bytes, from_revision: int, owners: Sequence[Owner]
    ) -> AsyncGenerator[kv_storage_pb2.FollowResponse, None]:
        """Yield one leader's changes until it stops leading."""
        raft_group = self._cluster.view.owner(topic, QUEUE)
        request = kv_storage_pb2.FollowRequest(
            raft_group=raft_group,
            table=topic_ref(topic),
            prefix=prefix,
            from_revision=from_revision,
            owner=self._owner(topic, owners),
        )
        leaders = self._cluster.storage.leaders
        asked = leaders.node_of(raft_group) or ""
        try:
            stream = self._channel(raft_group).stream(
                SERVICE + "Follow", request, kv_storage_pb2.FollowResponse
            )
            async for told in stream:
                if told.oldest_revision:
                    raise RequestError(
                        Code.PRECONDITION_FAILED,
                        f"changes are kept only from revision {told.oldest_revision} on",
                    )
                refusal = told.refusal
                if not refusal.outcome:
                    yield told
                elif refusal.outcome in errors.REPEATED_OUTCOMES:
                    leaders.refused(raft_group, asked, refusal.leader_node_id)
                elif refusal.outcome not in _MOVED:
                    raise errors.refused(refusal.outcome, refusal.reason)
        except AngeliaError as failure:
            leaders.failed(raft_group, asked, failure.code)

    async def _until_ended(
        self, stream: AsyncGenerator[kv_storage_pb2.FollowResponse, None]
    ) -> AsyncGenerator[kv_storage_pb2.FollowResponse, None]:
        """Yield what a stream yields.

        Raises:
            RequestError: PROXY_TIMEOUT, the broker stops.
        """
        while not self._has_ended:
            try:
                async with Timeout(None) as waiting:
                    self._waiting.add(waiting)
                    told = await anext(stream, None)
            except TimeoutError:
                break
            finally:
                self._waiting.discard(waiting)
            if told is None:
                return
            yield told
        raise RequestError(Code.PROXY_TIMEOUT, "the broker stops: watch at another broker")

    @contextmanager
    def _counted_watch(self) -> Iterator[None]:
        if self.watches >= self._config.max_watches:
            raise errors.too_many_requests("too many watches are open (kv.max_watches)")
        self.watches += 1
        try:
            yield
        finally:
            self.watches -= 1

    def _owner(self, topic: TopicRow, owners: Sequence[Owner]) -> kv_storage_pb2.StreamOwner:
        """Return for whom a stream is open, as its storage node counts it."""
        names = dict(owners)
        client, address = names.get("client", ""), names.get("address", "")
        return kv_storage_pb2.StreamOwner(
            broker_boot_id=self._boot_id,
            client=text_hash(client) if client else 0,
            address=text_hash(address) if address else 0,
            namespace=text_hash(topic.namespace),
        )

    def _channel(self, raft_group: int) -> Channel:
        node_id = self._cluster.storage.leaders.node_of(raft_group)
        if node_id is None:
            raise AngeliaError(UNAVAILABLE, f"raft group {raft_group} is unknown")
        return self._cluster.storage.channels.to(node_id)
