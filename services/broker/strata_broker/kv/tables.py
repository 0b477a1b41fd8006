"""The topic behind a table, and the raft group that holds it.

The first write creates a table. Invariant: there is one creation per name at a time; all callers
that need the name wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from strata.kv.v1 import kv_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base import errors
from strata_broker.base.audit import FirstUse
from strata_broker.base.failures import contained
from strata_broker.base.shares import Owner
from strata_broker.base.table_config import KvSection
from strata_broker.clients.provision import made_on_first_use
from strata_broker.metadata.creations import Creations
from strata_broker.metadata.metadata import NO_RAFT_GROUP, MetadataView, Name, TopicRow
from strata_broker.metadata.quotas import TOPICS
from strata_broker.servicers.plugins import PluginParts
from strata_kv.names import QUEUE, table_of, topic_of
from strata_metadata.errors import MetaRefused
from strata_mq.requests import (
    TABLE_PREFIX,
    Code,
    RequestError,
    check_namespace,
    check_topic,
)
from strata_runtime.timeouts import Timeout

Result = TypeVar("Result")

# Pause when a table is not where the metadata places it.
_MOVED_PAUSE_S = 0.02


class Tables:
    """See the module docstring.

    Args:
        parts: of the broker.
        config: times.
    """

    def __init__(self, parts: PluginParts, config: KvSection) -> None:
        self._cluster = parts.cluster
        self._calls = parts.calls
        self._audit = parts.audit
        self._operations = parts.operations
        self._view: MetadataView = parts.cluster.view
        self._config = config
        self._creations = Creations(
            parts.cluster.first_uses, parts.cluster.shown, parts.calls.requests
        )

    def find(self, name: kv_pb2.TableName) -> TopicRow | None:
        """Return the topic behind a table; None: there is no such table.

        Raises:
            RequestError: ILLEGAL_TOPIC, BAD_REQUEST: no name for a table.
        """
        topic = self._view.topic(name.namespace, topic_of(name.name))
        if topic is None:
            _check(name)
        return topic

    def get(self, name: kv_pb2.TableName) -> TopicRow:
        """Return the topic behind a table.

        Raises:
            RequestError: NOT_FOUND, or no name for a table.
        """
        topic = self.find(name)
        if topic is None:
            raise RequestError(Code.NOT_FOUND, f"table {name.name} does not exist")
        return topic

    async def for_write(self, name: kv_pb2.TableName, use: FirstUse) -> TopicRow:
        """Return the topic behind a table; create it if that is allowed.

        Raises:
            RequestError: NOT_FOUND, an illegal name, or the reason of a failed creation.
        """
        if self.find(name) is None and self._config.auto_create_table:
            await self._create_once(name, use)
        return self.get(name)

    async def create(self, name: kv_pb2.TableName) -> None:
        """Create a table for an operator, or wait until another call has created it.

        Raises:
            RequestError: the reason of a failed creation.
        """
        await self._create_once(name, None)

    async def _create_once(self, name: kv_pb2.TableName, use: FirstUse | None) -> None:
        """Create a table; None: its own call is told to the audit trail, if it succeeds."""
        _check(name)
        key = (name.namespace, topic_of(name.name))
        await self._creations.once(
            key, "create table", lambda: self._admit(key[0], use), lambda: self._create(key, use)
        )

    def _admit(self, namespace: str, use: FirstUse | None) -> Sequence[Owner]:
        first_uses = self._cluster.first_uses
        if use is None:
            return first_uses.begin_own("tables")
        return first_uses.begin("tables", namespace, use)

    def names(self, namespace: str) -> list[str]:
        """Return the tables of a namespace, sorted."""
        topics = self._view.topic_names().beginning_with(namespace, TABLE_PREFIX)
        return sorted(table for _, topic in topics if (table := table_of(topic)) is not None)

    async def delete(self, name: kv_pb2.TableName) -> None:
        """Delete a table and its items.

        Raises:
            RequestError: NOT_FOUND.
            MetaRefused, AngeliaError: it was not deleted, or that is unknown.
        """
        topic = self.get(name)
        await self._operations.delete_topic(topic.namespace, topic.name)

    async def at_raft_group(
        self, topic: TopicRow, deadline_s: float, work: Callable[[int], Awaitable[Result]]
    ) -> Result:
        """Run `work` at a table's raft group; again when the metadata lags behind a move.

        Raises:
            RequestError: of `work`; PROXY_TIMEOUT, no raft group has the table.
        """
        while True:
            raft_group = self._view.owner(topic, QUEUE)
            try:
                if raft_group != NO_RAFT_GROUP:
                    return await work(raft_group)
            except errors.MovedError:
                if self._view.topic_by_id(topic.topic_id) is None:
                    raise RequestError(Code.NOT_FOUND, "the table was deleted") from None
            if self._calls.clock.monotonic_s() + _MOVED_PAUSE_S >= deadline_s:
                raise errors.timed_out()
            await asyncio.sleep(_MOVED_PAUSE_S)

    async def _create(self, key: Name, use: FirstUse | None) -> RequestError | None:
        """Create a table and wait until the view shows it; return the error, if any."""
        namespace, topic_name = key
        timeout_s = self._calls.config.metadata.call_timeout_ms / 1000
        try:
            with (
                self._cluster.quotas.creating(TOPICS, namespace),
                contained(
                    self._calls.requests,
                    "create table",
                    MetaRefused,
                    AngeliaError,
                    TimeoutError,
                ),
            ):
                async with Timeout(timeout_s):
                    await self._create_topic(namespace, topic_name, use)
                    while self._view.topic(*key) is None:
                        await self._view.wait_for_revision(self._view.revision + 1, timeout_s)
        except RequestError as failure:
            # A quota is reached, or something unexpected happened.
            return failure
        except MetaRefused as refused:
            return errors.not_created(f"table {table_of(topic_name)}", refused)
        except (AngeliaError, TimeoutError):
            # It may still be created; the client's next try finds out.
            text = f"cannot create table {table_of(topic_name)}: the nameserver does not answer"
            return RequestError(Code.PROXY_TIMEOUT, text)
        return None

    async def _create_topic(self, namespace: str, topic_name: str, use: FirstUse | None) -> None:
        topic = meta_pb2.Topic(
            namespace=namespace,
            name=topic_name,
            type=meta_pb2.TOPIC_TYPE_NORMAL,
            queue_count=1,
        )
        request = meta_pb2.CreateTopicRequest(topic=topic)
        try:
            await self._cluster.metadata.call("CreateTopic", request, meta_pb2.CreateTopicResponse)
        except MetaRefused as refused:
            # Another broker may have been faster.
            if refused.outcome != meta_pb2.META_OUTCOME_ALREADY_EXISTS:
                raise
        else:
            if use is not None:
                made = made_on_first_use("table", (namespace, table_of(topic_name) or topic_name))
                self._audit.changed(use.who, use.rpc, made)


def _check(name: kv_pb2.TableName) -> None:
    check_namespace(name.namespace)
    if not name.name:
        raise RequestError(Code.BAD_REQUEST, "the table has no name")
    check_topic(topic_of(name.name))
