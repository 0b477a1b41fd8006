"""Clients of lite topics, below a parent that keeps them and below one whose quiet ones end.

Each lite topic has one sender, which sends a message when the one before was answered, so the order
of its messages is known. Consumers subscribe to all lite topics, again and again, and one of them
gives some up for a while. Below a parent whose lite topics end, messages may be gone with their
lite topic; all else holds there, too, and a lite topic that ended begins anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_mq import lite_policy
from strata_sim.chance import source
from strata_sim.client import LOST, Delivered, Refused, SimClient
from strata_sim.cluster import SimCluster

_FAILURES = (Refused, *LOST)
_CREATE_S = 20.0
_RETRY_S = 0.2
_THINK_S = 0.5
_REPEAT_S = 3.0
_QUEUES = 4
_NAMES = 5
_FORGOTTEN_SHARE = 0.1
_INVISIBLE_S = (1, 4)
_ATTEMPTS = 1_000
# Lifetimes are minutes for users, and have to be over within a run.
_MINUTE_MS = 4_000


@dataclass(slots=True)
class _Message:
    """One message; `number` is its place in its lite topic."""

    parent: str
    name: str
    number: int
    message_id: str
    answered: bool = False
    is_last: bool = False
    ack_begun: bool = False
    acknowledged: bool = False
    places: set[tuple[int, int]] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.parent} {self.name} {self.number}"


@dataclass(slots=True)
class _Parent:
    """A parent topic with its consumer group.

    Attributes:
        ends: its lite topics end when nothing is sent to them.
        lines: messages by lite topic, in order.
        newest: number of the newest message that came, by lite topic.
    """

    topic: str
    ends: bool
    lines: dict[str, list[_Message]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    broker_names: list[str] = field(default_factory=list)

    @property
    def group(self) -> str:
        """Name of its consumer group."""
        return f"{self.topic}-readers"


class LiteWork:
    """See the module docstring.

    Args:
        cluster: where they work.

    Attributes:
        done: how much was done of what.
    """

    def __init__(self, cluster: SimCluster) -> None:
        lite_policy._MINUTE_MS = _MINUTE_MS
        self._cluster = cluster
        self._parents = [_Parent("chats", ends=False), _Parent("rooms", ends=True)]
        self._bodies: dict[str, _Message] = {}
        self._sending = True
        self._forgotten_share = _FORGOTTEN_SHARE
        self._senders: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._wrong: list[str] = []
        self.done: Counter[str] = Counter()

    async def create(self) -> None:
        """Create topics and consumer groups.

        Raises:
            TimeoutError: the cluster does not serve.
        """
        client = self._cluster.client()
        async with asyncio.timeout(_CREATE_S):
            for parent in self._parents:
                await self._create(client, parent)

    async def _create(self, client: SimClient, parent: _Parent) -> None:
        attributes = {lite_policy.LIFETIME_ATTRIBUTE: "1"} if parent.ends else {}
        topic = meta_pb2.Topic(
            name=parent.topic,
            type=meta_pb2.TOPIC_TYPE_LITE,
            queue_count=_QUEUES,
            attributes=attributes,
        )
        group = meta_pb2.ConsumerGroup(name=parent.group, max_attempts=_ATTEMPTS)
        for rpc, request in (
            ("CreateTopic", admin_pb2.CreateTopicRequest(topic=topic)),
            ("CreateConsumerGroup", admin_pb2.CreateConsumerGroupRequest(consumer_group=group)),
        ):
            while True:
                try:
                    await client.admin(rpc, request)
                    break
                except _FAILURES as failure:
                    if "ALREADY_EXISTS" in str(failure):
                        break
                    await asyncio.sleep(_RETRY_S)
        while not parent.broker_names:
            try:
                parent.broker_names = await client.broker_names(parent.topic)
            except _FAILURES:
                await asyncio.sleep(_RETRY_S)

    def start(self) -> None:
        """Let all begin."""
        for parent in self._parents:
            self._senders.append(self._spawn(self._produce(self._cluster.client(), parent)))
            for wanders in (False, True):
                self._spawn(self._consume(self._cluster.client(), parent, wanders=wanders))

    async def drain(self, timeout_s: float) -> list[str]:
        """Send a last message to each lite topic; return what does not come, and what is wrong."""
        self._sending = False
        self._forgotten_share = 0.0
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._senders)
                await self._cluster.until(lambda: not self._missing(), timeout_s)
        except TimeoutError:
            self._wrong += [f"lite message lost: {one}" for one in self._missing()]
            self._wrong += ["stuck: a send to a lite topic" for s in self._senders if not s.done()]
        self._wrong += [
            f"lite message stored twice: {one} at {sorted(one.places)}"
            for one in self._bodies.values()
            if len(one.places) > 1
        ]
        return self._wrong

    async def stop(self) -> None:
        """End all clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _missing(self) -> list[_Message]:
        """Return what is to come and did not come to anybody who could acknowledge it."""
        return [
            one
            for parent in self._parents
            for line in parent.lines.values()
            for one in line
            if one.answered and not one.ack_begun and (one.is_last or not parent.ends)
        ]

    # Senders --------------------------------------------------------------------------------------

    async def _produce(self, client: SimClient, parent: _Parent) -> None:
        chance = source(self._cluster.seed, f"lite {client.name}")
        names = [f"{parent.topic}-{number}" for number in range(_NAMES)]
        # Few at a time, so that others are quiet for a while.
        busy = chance.sample(names, 2)
        while self._sending:
            await asyncio.sleep(chance.uniform(0, _THINK_S))
            if chance.random() < 0.1:
                busy = chance.sample(names, 2)
            await self._send(client, parent, chance.choice(busy))
        for name in names:
            await self._send(client, parent, name, is_last=True)

    async def _send(
        self, client: SimClient, parent: _Parent, name: str, *, is_last: bool = False
    ) -> None:
        line = parent.lines.setdefault(name, [])
        one = _Message(parent.topic, name, len(line), client.new_message_id(), is_last=is_last)
        line.append(one)
        self._bodies[str(one)] = one
        while not one.answered:
            try:
                await client.send(parent.topic, one.message_id, str(one).encode(), lite_topic=name)
            except _FAILURES as failure:
                self._cluster.trace.note(f"{client.name} send {one}: {failure!r}")
                await asyncio.sleep(_RETRY_S)
            else:
                one.answered = True
                self.done["lite_sends"] += 1

    # Consumers ------------------------------------------------------------------------------------

    async def _consume(self, client: SimClient, parent: _Parent, *, wanders: bool) -> None:
        chance = source(self._cluster.seed, f"lite {client.name}")
        told_s, names = float("-inf"), frozenset[str]()
        while True:
            try:
                wanted = frozenset(parent.lines)
                if client.now_s - told_s > _REPEAT_S or not names <= wanted:
                    if wanders and self._sending:
                        wanted = frozenset(one for one in sorted(wanted) if chance.random() < 0.5)
                    await client.sync_lite(parent.topic, parent.group, sorted(wanted))
                    told_s, names = client.now_s, wanted
                await self._consume_once(client, parent, chance)
            except _FAILURES as failure:
                self._cluster.trace.note(f"{client.name} lite: {failure!r}")
                told_s = float("-inf")
                await asyncio.sleep(_RETRY_S)

    async def _consume_once(
        self, client: SimClient, parent: _Parent, chance: random.Random
    ) -> None:
        acknowledged = {body for body, one in self._bodies.items() if one.acknowledged}
        delivered = await client.receive(
            parent.topic,
            chance.choice(parent.broker_names),
            parent.group,
            invisible_s=chance.randint(*_INVISIBLE_S),
            poll_s=1,
        )
        came: list[_Message] = []
        for message in delivered:
            self._cluster.trace.detail(f"{client.name} got {message}")
            self._wrong += self._judge(parent, message, came, acknowledged)
        if chance.random() < self._forgotten_share:
            return
        for one, message in zip(came, delivered, strict=False):
            one.ack_begun = True
            await client.ack(parent.topic, parent.group, message)
            one.acknowledged = True
            self.done["lite_acks"] += 1

    def _judge(
        self, parent: _Parent, message: Delivered, came: list[_Message], acknowledged: set[str]
    ) -> Iterator[str]:
        """Find what is wrong with a delivery, and note it in `came`."""
        one = self._bodies.get(message.body.decode(errors="replace"))
        if one is None or one.parent != parent.topic:
            yield f"lite phantom: {message}"
            return
        if str(one) in acknowledged:
            yield f"lite message came again after its ack: {one}"
        line = parent.lines[one.name]
        if not one.places and one.number < parent.newest.get(one.name, -1):
            yield f"lite message overtaken: {one}"
        if not parent.ends:
            for earlier in line[: one.number]:
                if not earlier.ack_begun and earlier not in came:
                    yield f"lite message too early: {one}, {earlier} is not acknowledged"
        one.places.add((message.queue, message.offset))
        parent.newest[one.name] = max(one.number, parent.newest.get(one.name, -1))
        came.append(one)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task
