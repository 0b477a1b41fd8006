"""Calls to a RocketMQ cluster of 4.9 to 5.5: its description, and its messages queue by queue.

Only masters are asked. A pull consumes nothing: it names RocketMQ's own group for tools, and
stores no offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strata_cli.errors import CliError
from strata_cli.migrate.access_rows import SourceAccess, rules_of, users_of
from strata_cli.migrate.connections import (
    RemotingConnections,
    SourceRefusedError,
    SourceUnreachableError,
)
from strata_cli.migrate.source_rows import (
    BrokerDescription,
    SourceBroker,
    SourceQueue,
    brokers_of,
    groups_of,
    positions_of,
    topics_of,
)
from strata_remoting import (
    AdminCode,
    PulledMessage,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    decode_messages,
)

MAX_PULLED = 512
"""Most messages of one pull; brokers give fewer, 32 by default."""

_TOOL_GROUP = "TOOLS_CONSUMER"
# The request brings its subscription along: the group has no members that told it.
_SUBSCRIPTION = 4
_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class Retained(NamedTuple):
    """The retained part of a queue: from `begin` to before `end`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """The messages that one pull found.

    Attributes:
        messages: in order of their offsets.
        next_offset: where the next pull begins.
        window: of the queue at that time.
    """

    messages: Sequence[PulledMessage]
    next_offset: int
    window: Retained


class MigrationSource(Protocol):
    """A cluster that is copied."""

    async def describe(self) -> Sequence[BrokerDescription]:
        """Return what its brokers say, by broker name."""

    async def window(self, queue: SourceQueue) -> Retained:
        """Return the retained part of a queue."""

    async def pull(self, queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        """Return messages of a queue from an offset on: at most `count`, maybe none."""


class RocketMqSource:
    """See the module docstring.

    Args:
        connections: to its servers.
        nameservers: HOST:PORT of each; the first one that answers counts.
    """

    def __init__(self, connections: RemotingConnections, nameservers: Sequence[str]) -> None:
        self._connections = connections
        self._nameservers = nameservers
        self._addresses: dict[str, str] = {}
        self._had_brokers = False

    async def describe(self) -> Sequence[BrokerDescription]:
        """See `MigrationSource.describe`.

        Raises:
            CliError: a server cannot be reached, refuses, or its answer cannot be read.
        """
        brokers = await self._brokers()
        self._had_brokers |= bool(brokers)
        if not brokers and self._had_brokers:
            raise SourceUnreachableError("the nameserver knows no master any more")
        if not brokers:
            raise CliError("the nameserver knows no master: nothing can be copied", "not_found")
        return [await self._rows(broker) for broker in brokers]

    async def window(self, queue: SourceQueue) -> Retained:
        """See `MigrationSource.window`.

        Raises:
            CliError: see `describe`.
        """
        fields = {"topic": queue.topic, "queueId": queue.queue}
        begin, end = await asyncio.gather(
            self._call(queue.broker, RequestCode.GET_MIN_OFFSET, fields),
            self._call(queue.broker, RequestCode.GET_MAX_OFFSET, fields),
        )
        try:
            first = max(0, begin.number("offset"))
            return Retained(first, max(first, end.number("offset")))
        except RemotingError as error:
            raise CliError(f"{queue}: {error}") from None

    async def pull(self, queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        """See `MigrationSource.pull`.

        Raises:
            CliError: see `describe`; also when a message is damaged.
        """
        fields = {
            "consumerGroup": _TOOL_GROUP,
            "topic": queue.topic,
            "queueId": queue.queue,
            "queueOffset": offset,
            "maxMsgNums": min(count, MAX_PULLED),
            "sysFlag": _SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        address = await self._address(queue.broker)
        answer = await self._connections.ask(address, RequestCode.PULL_MESSAGE, fields)
        known = (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, *_NOTHING)
        if answer.code not in known:
            raise SourceRefusedError(address, answer)
        try:
            messages = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
            window = Retained(answer.number("minOffset"), answer.number("maxOffset"))
            next_offset = answer.number("nextBeginOffset")
        except RemotingError as error:
            raise CliError(f"{queue} at offset {offset}: {error}") from None
        return PulledBatch(
            [one for one in messages if one.queue_offset >= offset], next_offset, window
        )

    async def access(self) -> SourceAccess:
        """Return the users of all masters, and their ACLs.

        Raises:
            CliError: see `describe`; also when a broker has no ACL 2.0.
        """
        found = SourceAccess()
        for broker in await self._brokers():
            users = await self._access_rows(broker, AdminCode.AUTH_LIST_USER)
            rules = await self._access_rows(broker, AdminCode.AUTH_LIST_ACL)
            known = {user.name: user for user in users_of(users.body)}
            found.add(SourceAccess(known, rules_of(rules.body)), broker.name)
        return found

    async def _access_rows(self, broker: SourceBroker, code: AdminCode) -> RemotingCommand:
        try:
            return await self._connections.call(broker.address, code, {})
        except SourceRefusedError as refusal:
            if refusal.answer_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise CliError(
                f"broker {broker.name} has no ACL 2.0: give its plain_acl.yml (--plain-acl)",
                "refused",
            ) from None

    async def _brokers(self) -> list[SourceBroker]:
        failure: CliError | None = None
        for nameserver in self._nameservers:
            try:
                answer = await self._connections.call(
                    nameserver, RequestCode.GET_BROKER_CLUSTER_INFO, {}
                )
            except CliError as unreachable:
                failure = unreachable
                continue
            brokers = brokers_of(answer.body)
            self._addresses = {broker.name: broker.address for broker in brokers}
            return brokers
        raise failure or CliError("no nameserver is given", "usage")

    async def _rows(self, broker: SourceBroker) -> BrokerDescription:
        ask, address = self._connections.call, broker.address
        topics = await ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, {})
        groups = await ask(address, RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, {})
        positions = await ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
        return BrokerDescription(
            broker, topics_of(topics.body), groups_of(groups.body), positions_of(positions.body)
        )

    async def _call(self, broker: str, code: int, fields: dict[str, object]) -> RemotingCommand:
        return await self._connections.call(await self._address(broker), code, fields)

    async def _address(self, broker: str) -> str:
        if broker not in self._addresses:
            await self._brokers()
        if broker not in self._addresses:
            # It was there when its queues were found: a broker that stops takes its name away.
            raise SourceUnreachableError(f"the nameserver knows no master of broker {broker}")
        return self._addresses[broker]
