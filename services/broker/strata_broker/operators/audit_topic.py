"""Sends the events of the audit trail as messages to the topic `__strata_audit`.

Events wait in a bounded queue; those that find no room, or that storage refuses again and again,
are dropped and counted. The body of a message is the event as JSON; its tag is the kind of event,
its keys are the user and the address.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from hashlib import md5

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.audit import AuditSection, address_of
from strata_broker.base.failures import passed_over
from strata_broker.base.identity import BrokerIdentity
from strata_broker.metadata.metadata import MetadataView
from strata_broker.operators.topics import Operations
from strata_broker.sends.internal_sends import InternalSends
from strata_edge.ports import CallError
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError
from strata_runtime.audit import AuditEvent
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

AUDIT_TOPIC = "__strata_audit"

_QUEUES = 2
_BATCH = 32
_TRIES = 5
_PAUSE_S = 0.5


class AuditTopic:
    """An `AuditSink`; see the module docstring.

    Args:
        identity: of the broker, for ids of messages.
        view: tells whether the topic exists.
        operations: make the topic.
        sends: of the broker itself.
        config: limits.
        requests: told of events that cannot be sent.
        metrics: what was sent and dropped.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        view: MetadataView,
        operations: Operations,
        *,
        sends: InternalSends,
        config: AuditSection,
        requests: RequestTasks,
        metrics: Metrics,
    ) -> None:
        self._requests = requests
        self._identity = identity
        self._view = view
        self._operations = operations
        self._sends = sends
        self._config = config
        # (number among this broker's events, event)
        self._waiting: deque[tuple[int, AuditEvent]] = deque()
        self._next_number = 0
        self._arrived = asyncio.Event()
        self._sent_total = metrics.counter("strata_broker_audit_sent_total")
        self._dropped_total = metrics.counter("strata_broker_audit_dropped_total")
        metrics.gauge("strata_broker_audit_waiting", lambda: len(self._waiting))
        metrics.gauge("strata_broker_audit_waiting_maximum", lambda: config.max_waiting_events)
        self._logger = get_logger("audit")

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""
        if len(self._waiting) >= self._config.max_waiting_events:
            self._dropped_total.add(1)
            return
        self._waiting.append((self._next_number, event))
        self._next_number += 1
        self._arrived.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                with passed_over(self._requests, "send audit events"):
                    await self._send(batch)
                    continue
                self._dropped_total.add(len(batch))

    async def _send(self, batch: Sequence[tuple[int, AuditEvent]]) -> None:
        """Send events; a repeat has the same message ids, so it is stored once."""
        request = service_pb2.SendMessageRequest(
            messages=[self._message_of(number, event) for number, event in batch]
        )
        reason = ""
        for _ in range(_TRIES):
            try:
                await self._make_topic()
                response = await self._sends.send_own(request)
            except (MetaRefused, AngeliaError, RequestError, CallError) as failure:
                reason = str(failure)
            else:
                if response.status.code == definition_pb2.OK:
                    self._sent_total.add(len(batch))
                    return
                reason = response.status.message
            await asyncio.sleep(_PAUSE_S)
        self._dropped_total.add(len(batch))
        self._logger.warning("audit events are not in their topic", count=len(batch), reason=reason)

    async def _make_topic(self) -> None:
        if self._view.topic("", AUDIT_TOPIC) is not None:
            return
        try:
            await self._operations.create_topic(
                meta_pb2.Topic(
                    name=AUDIT_TOPIC,
                    type=meta_pb2.TOPIC_TYPE_NORMAL,
                    queue_count=_QUEUES,
                    retention_ms=self._config.topic_retention_ms,
                )
            )
        except MetaRefused as refused:
            # Another broker was faster.
            if refused.outcome != meta_pb2.META_OUTCOME_ALREADY_EXISTS:
                raise

    def _message_of(self, number: int, event: AuditEvent) -> definition_pb2.Message:
        named = f"audit/{self._identity.node_id}/{self._identity.boot_id}/{number}".encode()
        message = definition_pb2.Message(body=json.dumps(event, ensure_ascii=False).encode())
        message.topic.name = AUDIT_TOPIC
        properties = message.system_properties
        properties.message_id = f"01{md5(named, usedforsecurity=False).hexdigest().upper()}"
        properties.message_type = definition_pb2.NORMAL
        properties.body_encoding = definition_pb2.IDENTITY
        properties.born_timestamp.FromMilliseconds(int(event["time_ms"]))
        properties.tag = str(event["event"]).replace(" ", "_")
        keys = (str(event.get("user", "")), address_of(str(event.get("peer", ""))))
        properties.keys.extend(key for key in keys if key and key.isprintable() and " " not in key)
        return message
