"""A receive from its check to its answer: what it asked for, and what has to end with it.

Thousands of them wait at the same time, and each takes memory while it does (rule 34): it is one
object with slots, whose methods are its callbacks.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2
from strata_broker.base.admission import Admitted
from strata_broker.clients.sessions import Client
from strata_broker.metadata.metadata import Name, TopicRow
from strata_broker.metadata.places import Wanted
from strata_broker.storage_client.pop_ends import PopTicket
from strata_edge.ports import HotCall


class CheckedReceive(NamedTuple):
    """A checked request."""

    client_id: str
    group: Name
    topic: TopicRow
    wanted: Wanted
    max_messages: int
    invisible_ms: int
    auto_renew: bool
    attempt: int
    # The client repeats the attempt if it gets no answer.
    names_attempt: bool
    wait_ms: int
    expression: str
    message_filter: storage_pb2.Filter
    one_per_message_group: bool
    language: int


class ReceiveOwner(Protocol):
    """The one that serves receives."""

    def failed(self, under_way: UnderWay) -> None:
        """Answer a receive whose task raised something unexpected."""

    def ended(self, under_way: UnderWay) -> None:
        """Forget a receive whose task has ended."""

    def client_gone(self, under_way: UnderWay) -> None:
        """End a receive that nobody waits for any more."""


class UnderWay:
    """See the module docstring.

    Args:
        owner: hears of its ends.
        call: to answer.
        receive: what it asks for.
        client: who asks.
        ticket: of its pops.
        admitted: its place in the limits.
        started_s: when it came, on the monotonic clock.
    """

    __slots__ = (
        "_owner",
        "admitted",
        "call",
        "client",
        "receive",
        "started_s",
        "task",
        "ticket",
    )

    def __init__(
        self,
        owner: ReceiveOwner,
        call: HotCall,
        receive: CheckedReceive,
        *,
        client: Client,
        ticket: PopTicket,
        admitted: Admitted,
        started_s: float,
    ) -> None:
        self._owner = owner
        self.call = call
        self.receive = receive
        self.client = client
        self.ticket = ticket
        self.admitted = admitted
        self.started_s = started_s
        self.task: asyncio.Task[None] | None = None

    def on_failure(self, _: BaseException) -> None:
        """Tell that the task raised something unexpected."""
        self._owner.failed(self)

    def on_end(self, _: asyncio.Task[None]) -> None:
        """Tell that the task has ended."""
        self._owner.ended(self)

    def on_gone(self) -> None:
        """Tell that the client has gone."""
        self._owner.client_gone(self)
