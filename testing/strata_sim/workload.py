"""Work of clients in a simulated cluster under faults, and the history that they record.

Producers send to a normal and to a FIFO topic; consumers pop, hold, acknowledge most messages and
let the other leases expire; a reader asks for the ends of queues. Clients know nothing of faults:
they record an error as an unknown outcome and continue.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from strata.admin.v1 import admin_pb2
from strata_sim.chance import source
from strata_sim.client import LOST, Delivered, Refused, SimClient
from strata_sim.cluster import SimCluster
from strata_sim.history import History, Lease
from strata_sim.queue_ends import QueueEnds

_UNKNOWN = (Refused, *LOST)
_INVISIBLE_S = (1, 4)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """How much clients do.

    Attributes:
        producers: of the normal topic; the FIFO topic has as many, one message group each.
        consumers: per topic.
        queue_count: of each topic.
        think_s: longest pause of a producer between two sends.
        forget_share: messages that a consumer does not acknowledge.
        read_s: pause of the reader of queue ends.
    """

    producers: int = 2
    consumers: int = 2
    queue_count: int = 4
    think_s: float = 0.6
    forget_share: float = 0.1
    read_s: float = 1.0


@dataclass(slots=True)
class Topic:
    """A topic, its one consumer group and the broker names of its route."""

    name: str
    group: str
    fifo: bool
    broker_names: list[str] = field(default_factory=list)


class Workload:
    """All clients of one run.

    Args:
        cluster: where they work.
        options: how much they do.

    Attributes:
        history: what they did and saw.
        ends: sends and reads of queue ends, with times.
        last_answer_s: when a send was last answered.
    """

    def __init__(self, cluster: SimCluster, options: WorkloadOptions | None = None) -> None:
        self.history = History()
        self.ends = QueueEnds()
        self.last_answer_s = 0.0
        self._cluster = cluster
        self._options = options or WorkloadOptions()
        self._topics = [
            Topic("orders", "orders-readers", fifo=False),
            Topic("events", "events-readers", fifo=True),
        ]
        self._sending = True
        self._open_sends = 0
        self._consuming = True
        self._forget_share = self._options.forget_share
        self._tried: set[tuple[str, str]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: dict[str, int] = defaultdict(int)

    async def create(self) -> None:
        """Create topics and consumer groups.

        Raises:
            TimeoutError: the cluster does not serve.
        """
        client = self._cluster.client()
        for topic in self._topics:
            create_topic = partial(
                client.create_topic,
                topic.name,
                fifo=topic.fifo,
                queue_count=self._options.queue_count,
            )
            await self._persist(create_topic)
            await self._persist(partial(client.create_group, topic.group, fifo=topic.fifo))
            topic.broker_names = await client.broker_names(topic.name)

    async def _persist(self, call: Callable[[], Awaitable[None]], timeout_s: float = 20.0) -> None:
        """Repeat a creation until it is done; "exists already" is done too."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await call()
                except _UNKNOWN as failure:
                    if "ALREADY_EXISTS" in str(failure):
                        return
                    await asyncio.sleep(0.2)
                else:
                    return

    def start(self) -> None:
        """Let all clients begin."""
        options = self._options
        for topic in self._topics:
            for number in range(options.producers):
                name = f"{topic.name}-{number}" if topic.fifo else ""
                self._spawn(self._produce(self._cluster.client(), topic, name))
            for _ in range(options.consumers):
                self._spawn(self._consume(self._cluster.client(), topic))
        self._spawn(self._read_ends(self._cluster.client()))

    async def drain(self, timeout_s: float) -> list[str]:
        """Stop sending and wait until every answered send is acknowledged.

        A message whose acknowledgement was not answered with OK may be consumed all the same, or
        come again; that none of them is left is what the consumer groups' lag says.

        Returns:
            Conditions that still do not hold after so long, as violations: they are stuck forever.
        """
        self._sending = False
        self._forget_share = 0.0
        client = self._cluster.client()
        deadline_s = self._cluster.now_s + timeout_s
        lags: list[str] = []
        while self._cluster.now_s < deadline_s:
            await asyncio.sleep(0.1)
            # A send that is under way may be answered yet, and has to be consumed then.
            if not self._open_sends and not self._waiting():
                lags = await self._lags(client) or await self._old_queue_counts(client)
                if not lags:
                    break
        self._consuming = False
        waiting = [f"stuck: {message_id} to {group}" for group, message_id in self._waiting()]
        return waiting + lags

    async def _lags(self, client: SimClient) -> list[str]:
        """Return what consumer groups have not consumed, as violations."""
        violations = []
        for topic in self._topics:
            request = admin_pb2.GetConsumerGroupRequest(name=topic.group)
            try:
                data = await client.admin("GetConsumerGroup", request)
            except _UNKNOWN as failure:
                violations.append(f"stuck: lag of {topic.group}: {failure!r}")
                continue
            response = admin_pb2.GetConsumerGroupResponse.FromString(data)
            violations += [
                f"stuck: {queue.topic} queue {queue.queue}: cursor {queue.cursor} of "
                f"{topic.group}, end {queue.next_offset}"
                for queue in response.queues
                if queue.cursor < queue.next_offset
            ]
            others = {queue.topic for queue in response.queues} - {topic.name}
            violations += [
                f"listed: {topic.group} never consumed {other}" for other in sorted(others)
            ]
        return violations

    async def _old_queue_counts(self, client: SimClient) -> list[str]:
        """Return which topics have message groups where an older queue count put them."""
        violations = []
        for topic in self._topics:
            try:
                data = await client.admin("GetTopic", admin_pb2.GetTopicRequest(name=topic.name))
            except _UNKNOWN as failure:
                violations.append(f"stuck: {topic.name}: {failure!r}")
                continue
            row = admin_pb2.GetTopicResponse.FromString(data).topic
            if row.previous_queue_count:
                violations.append(f"stuck: {topic.name} in {row.previous_queue_count} old queues")
        return violations

    async def probe(self, timeout_s: float) -> list[str]:
        """Send one message to every topic; return which cannot be sent to, as violations."""
        violations = []
        client = self._cluster.client()
        for topic in self._topics:
            started_s = self._cluster.now_s
            while not await self._send(client, topic, "probe" if topic.fifo else ""):
                if self._cluster.now_s > started_s + timeout_s:
                    violations.append(f"stuck: no send to {topic.name} within {timeout_s} s")
                    break
                await asyncio.sleep(0.1)
        return violations

    async def stop(self) -> None:
        """End all clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _waiting(self) -> list[tuple[str, str]]:
        """Return (consumer group, message id) of answered sends never tried to acknowledge."""
        history = self.history
        groups = {topic.name: topic.group for topic in self._topics}
        return [
            (groups[history.sends[message_id].topic], message_id)
            for message_id in history.answered
            if (groups[history.sends[message_id].topic], message_id) not in self._tried
        ]

    # Clients ------------------------------------------------------------------------------------

    async def _produce(self, client: SimClient, topic: Topic, message_group: str) -> None:
        chance = source(self._cluster.seed, f"work of {client.name}")
        while self._sending:
            await asyncio.sleep(chance.uniform(0, self._options.think_s))
            if self._sending:
                await self._send(client, topic, message_group)

    async def _send(self, client: SimClient, topic: Topic, message_group: str) -> bool:
        """Send one message; return whether it was answered."""
        message_id = client.new_message_id()
        body = message_id.encode()
        called_s = self._cluster.now_s
        self.history.attempt(topic.name, message_id, body, message_group)
        self.ends.sent(message_id, called_s, client.name)
        self._open_sends += 1
        try:
            offset = await client.send(topic.name, message_id, body, message_group)
        except _UNKNOWN as failure:
            self._note(client, "send", failure)
            return False
        finally:
            self._open_sends -= 1
        self.last_answer_s = self._cluster.now_s
        self._cluster.trace.detail(f"{client.name} sent {message_id} at {topic.name} {offset}")
        self.history.answer(message_id, offset)
        self.ends.answered(message_id, self._cluster.now_s)
        return True

    async def _consume(self, client: SimClient, topic: Topic) -> None:
        chance = source(self._cluster.seed, f"work of {client.name}")
        while self._consuming:
            name = chance.choice(topic.broker_names)
            invisible_s = chance.randint(*_INVISIBLE_S)
            called_s, since = self._cluster.now_s, self.history.mark()
            try:
                delivered = await client.receive(
                    topic.name, name, topic.group, invisible_s=invisible_s, poll_s=1
                )
            except _UNKNOWN as failure:
                self._note(client, "receive", failure)
                await asyncio.sleep(0.1)
                continue
            lease = Lease(called_s, self._cluster.now_s, invisible_s)
            for message in delivered:
                self._cluster.trace.detail(
                    f"{client.name} got {message.message_id} from {topic.name} {message.queue} "
                    f"{message.offset}, attempt {message.attempt}, asked at {called_s:.4f}"
                )
                self.history.deliver(
                    topic.group,
                    topic.name,
                    message.message_id,
                    message.body,
                    message.queue,
                    message.offset,
                    since=since,
                    lease=lease,
                    attempt=message.attempt,
                )
            await self._acknowledge(client, topic, delivered, chance)

    async def _acknowledge(
        self, client: SimClient, topic: Topic, delivered: list[Delivered], chance: random.Random
    ) -> None:
        for message in delivered:
            await asyncio.sleep(chance.uniform(0, 0.02))
            if chance.random() < self._forget_share:
                if topic.fifo:
                    # The rest of the batch comes again with it.
                    return
                continue
            self._tried.add((topic.group, message.message_id))
            try:
                await client.ack(topic.name, topic.group, message)
            except _UNKNOWN as failure:
                self._note(client, "ack", failure)
                if topic.fifo:
                    return
            else:
                self._cluster.trace.detail(f"{client.name} acknowledged {message.message_id}")
                self.history.acknowledge(topic.group, message.message_id)

    async def _read_ends(self, client: SimClient) -> None:
        while self._consuming:
            await asyncio.sleep(self._options.read_s)
            for topic in self._topics:
                called_s = self._cluster.now_s
                try:
                    data = await client.admin(
                        "GetTopic", admin_pb2.GetTopicRequest(name=topic.name)
                    )
                except _UNKNOWN as failure:
                    self._note(client, "read", failure)
                    continue
                response = admin_pb2.GetTopicResponse.FromString(data)
                # A topic that grew may have a home in more raft groups.
                names = {*topic.broker_names, *(status.broker_name for status in response.queues)}
                topic.broker_names = sorted(names)
                ends = {status.queue: status.next_offset for status in response.queues}
                self.ends.read(topic.name, ends, called_s, self._cluster.now_s)

    def _note(self, client: SimClient, call: str, failure: Exception) -> None:
        self.errors[f"{call}: {failure}"] += 1
        self._cluster.trace.note(f"{client.name} {call}: {failure!r}")
