"""Finds topics and consumer groups, and creates them on first use where that is allowed.

Invariant: there is one creation per name at a time; all callers that need the name wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base import errors
from strata_broker.base.audit import AuditTrail, FirstUse
from strata_broker.base.failures import contained
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.base.shares import Owner
from strata_broker.metadata.creations import Creations
from strata_broker.metadata.first_uses import FirstUses
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.metadata.quotas import CONSUMER_GROUPS, TOPICS, Quotas
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_mq.requests import (
    RETRY_PREFIX,
    Code,
    RequestError,
    check_namespace,
    check_new_consumer_group,
    check_new_topic,
    check_not_own_consumer_group,
    check_topic,
    is_own_consumer_group,
)
from strata_runtime.tasks import RequestTasks
from strata_runtime.timeouts import Timeout

_COUNTED_AS = {"topic": TOPICS, "consumer group": CONSUMER_GROUPS}


class Provisioner:
    """Finds topics and consumer groups; creates them on first use where that is allowed.

    Attributes:
        view: what is known of them.
    """

    def __init__(
        self,
        view: MetadataView,
        client: MetadataClient,
        quotas: Quotas,
        *,
        first_uses: FirstUses,
        shown: ShownRevisions,
        config: MetadataSection,
        requests: RequestTasks,
        audit: AuditTrail,
    ) -> None:
        self.view = view
        self._audit = audit
        self._client = client
        self._quotas = quotas
        self._config = config
        self._requests = requests
        self._first_uses = first_uses
        self._creations = Creations(first_uses, shown, requests)

    def topic(self, namespace: str, name: str) -> TopicRow:
        """Return a topic that exists and holds messages.

        Raises:
            RequestError: ILLEGAL_TOPIC or TOPIC_NOT_FOUND.
        """
        topic = self.view.topic(namespace, name)
        if topic is None or topic.is_table:
            check_topic(name)
            raise topic_not_found(name)
        return topic

    async def topic_for_use(self, namespace: str, name: str, use: FirstUse) -> TopicRow:
        """Return a topic, created as a MIXED one when `auto_create_topic` is on.

        Raises:
            RequestError: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, or the reason of a failed creation.
        """
        if self.view.topic(namespace, name) is not None or not self._config.auto_create_topic:
            return self.topic(namespace, name)
        check_new_topic(name)
        await self._create_once("topic", (namespace, name), use)
        return self.topic(namespace, name)

    async def retry_topic(self, consumer_group: str, use: FirstUse) -> TopicRow:
        """Return the topic in which messages wait that a pull consumer sent back; made if needed.

        It belongs to its consumer group as a dead-letter topic does: no setting forbids it.

        Raises:
            RequestError: the consumer group is refused, or the reason of a failed creation.
        """
        await self.consumer_group_for_use("", consumer_group, use)
        name = RETRY_PREFIX + consumer_group
        if self.view.topic("", name) is None:
            await self._create_once("topic", ("", name), use)
        return self.topic("", name)

    async def consumer_group_for_use(
        self, namespace: str, name: str, use: FirstUse
    ) -> meta_pb2.ConsumerGroup:
        """Return a consumer group, created with the defaults when it is unknown.

        Raises:
            RequestError: ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, or the reason of a
                failed creation.
        """
        group = self.view.consumer_group(namespace, name)
        if group is not None:
            check_not_own_consumer_group(name)
            return group
        check_new_consumer_group(name)
        if not self._config.auto_create_group:
            raise consumer_group_not_found(name)
        return await self._created_group(namespace, name, use)

    async def system_group(self, namespace: str, name: str) -> meta_pb2.ConsumerGroup:
        """Return a consumer group that the broker itself needs, created when it is unknown.

        It counts in no quota.

        Raises:
            RequestError: the reason of a failed creation.
        """
        group = self.view.consumer_group(namespace, name)
        if group is not None:
            return group
        return await self._created_group(namespace, name, None)

    async def _created_group(
        self, namespace: str, name: str, use: FirstUse | None
    ) -> meta_pb2.ConsumerGroup:
        await self._create_once("consumer group", (namespace, name), use)
        group = self.view.consumer_group(namespace, name)
        if group is None:
            raise consumer_group_not_found(name)
        return group

    async def _create_once(self, kind: str, name: Name, use: FirstUse | None) -> None:
        """Create, or wait for the creation of this name that runs already; None: the broker's own.

        A call that finds none is charged for it, those that wait for it are not.
        """
        check_namespace(name[0])
        await self._creations.once(
            (kind, name),
            f"create {kind}",
            lambda: self._admit(kind, name[0], use),
            lambda: self._create(kind, name, use or FirstUse()),
        )

    def _admit(self, kind: str, namespace: str, use: FirstUse | None) -> Sequence[Owner]:
        if use is None:
            return self._first_uses.begin_own(f"{kind}s")
        if kind != "topic":
            self._first_uses.check_consumer_groups(namespace)
        return self._first_uses.begin(f"{kind}s", namespace, use)

    async def _create(self, kind: str, name: Name, use: FirstUse) -> RequestError | None:
        """Create and wait until the view shows it; return the error, if any."""
        try:
            with (
                self._counted(kind, name),
                contained(
                    self._requests, f"create {kind}", MetaRefused, AngeliaError, TimeoutError
                ),
            ):
                await self._create_and_see(kind, name, use)
        except RequestError as failure:
            # A quota is reached, or something unexpected happened.
            return failure
        except MetaRefused as refused:
            return errors.not_created(f"{kind} {name[1]}", refused)
        except (AngeliaError, TimeoutError) as lost:
            # It may still be created; the client's next try finds out.
            reason = (
                lost.reason if isinstance(lost, AngeliaError) else "the nameserver does not answer"
            )
            return RequestError(Code.PROXY_TIMEOUT, f"cannot create {kind} {name[1]}: {reason}")
        return None

    def _counted(self, kind: str, name: Name) -> AbstractContextManager[None]:
        if is_own_consumer_group(name[1]) and kind != "topic":
            return nullcontext()
        return self._quotas.creating(_COUNTED_AS[kind], name[0])

    async def _create_and_see(self, kind: str, name: Name, use: FirstUse) -> None:
        timeout_s = self._config.call_timeout_ms / 1000
        create = self._create_topic if kind == "topic" else self._create_consumer_group
        async with Timeout(timeout_s):
            try:
                await create(*name)
            except MetaRefused as refused:
                # Another broker may be faster: it tells the audit trail.
                if refused.outcome != meta_pb2.META_OUTCOME_ALREADY_EXISTS:
                    raise
            else:
                self._audit.changed(use.who, use.rpc, made_on_first_use(kind, name))
            while not self._known(kind, name):
                await self.view.wait_for_revision(self.view.revision + 1, timeout_s)

    def _known(self, kind: str, name: Name) -> bool:
        if kind == "topic":
            return self.view.topic(*name) is not None
        return self.view.consumer_group(*name) is not None

    async def _create_topic(self, namespace: str, name: str) -> None:
        is_retry = name.startswith(RETRY_PREFIX)
        topic = meta_pb2.Topic(
            namespace=namespace,
            name=name,
            type=meta_pb2.TOPIC_TYPE_MIXED,
            queue_count=1 if is_retry else self._config.auto_topic_queue_count,
        )
        await self._client.call(
            "CreateTopic",
            meta_pb2.CreateTopicRequest(topic=topic),
            meta_pb2.CreateTopicResponse,
        )

    async def _create_consumer_group(self, namespace: str, name: str) -> None:
        group = meta_pb2.ConsumerGroup(namespace=namespace, name=name)
        await self._client.call(
            "CreateConsumerGroup",
            meta_pb2.CreateConsumerGroupRequest(consumer_group=group),
            meta_pb2.CreateConsumerGroupResponse,
        )


def made_on_first_use(kind: str, name: Name) -> str:
    """Return what an event of the audit trail says of something that was created on first use."""
    namespace, shown = name
    place = f"{namespace}/" if namespace else ""
    return f"created the {kind} {place}{shown} on first use"


def topic_not_found(name: str) -> RequestError:
    """Return the error whose text clients' own tests match (two blanks before DESC)."""
    return RequestError(
        Code.TOPIC_NOT_FOUND,
        f"CODE: 17  DESC: No topic route info in name server for the topic: {name}",
    )


def consumer_group_not_found(name: str) -> RequestError:
    """Return the error for an unknown consumer group where none may be created."""
    return RequestError(
        Code.CONSUMER_GROUP_NOT_FOUND,
        f"CODE: 26  DESC: subscription group not exist: {name}",
    )
