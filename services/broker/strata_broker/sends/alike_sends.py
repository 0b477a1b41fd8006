"""Sends of a turn that differ in their messages only: everything else is decided once for them.

Most sends are small requests, and many of one connection to one topic arrive together. The client,
its rights, the topic and the time left are looked up once for all of them. A send that is not like
another, or that something speaks against, is taken by itself: only then it is refused, with its own
code and text (docs/adr/0077).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from strata_broker.access.authentication import Authenticator
from strata_broker.access.principals import send_right
from strata_broker.metadata.metadata import Name
from strata_broker.metadata.requests import caller_of, time_for
from strata_broker.sends.named_queue import QUEUE_HEADER
from strata_broker.sends.outgoing import ParsedSend
from strata_broker.sends.pending_send import SEND
from strata_edge.passes import SendPass
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage
from strata_mq.requests import MessageType, RequestError, check_not_own_topic
from strata_runtime.tasks import RequestTasks


class Alike(NamedTuple):
    """`strata_edge.passes.AlikeCalls` by name."""

    metadata: Mapping[str, str]
    peer: str
    namespace: str
    topic: str
    message_type: int
    calls: list[HotCall]
    message_ids: list[list[str]]
    sizes_bytes: list[int]
    left_s: float | None


class AlikeSend(NamedTuple):
    """Sends of one client to one topic, before their messages are prepared.

    Attributes:
        calls: the SendMessages.
        message_ids: of each call's messages.
        sizes_bytes: of each request.
        topic: of all messages.
        message_type: of all messages.
        client_id: who sends.
        user: who signed the calls; "": access is not controlled.
        peer: address of the client.
        started_s: when the turn began.
        deadline_s: when the first client no longer waits.
    """

    calls: list[HotCall]
    message_ids: list[list[str]]
    sizes_bytes: list[int]
    topic: Name
    message_type: int
    client_id: str
    user: str
    peer: str
    started_s: float
    deadline_s: float

    def parsed(self, number: int) -> ParsedSend:
        """Return the request of one of the calls."""
        request = self.calls[number].request
        ids = self.message_ids[number]
        return ParsedSend(request, ids, self.topic, self.client_id, user=self.user)


class AlikeSends:
    """Finds such sends. Used on the event loop only.

    Args:
        send_pass: reads requests.
        gather: takes sends that may be made; False: they are to be taken by themselves.
        access: knows who calls.
        max_request_bytes: larger requests are taken by themselves.
        timeout_s: for calls without a deadline.
        max_timeout_s: longest time of any call.
        requests: note unexpected failures.
    """

    def __init__(
        self,
        send_pass: SendPass[OutgoingMessage],
        gather: Callable[[AlikeSend], bool],
        access: Authenticator,
        *,
        max_request_bytes: int,
        timeout_s: float,
        max_timeout_s: float,
        requests: RequestTasks,
    ) -> None:
        self._pass = send_pass
        self._gather = gather
        self._access = access
        self._max_request_bytes = max_request_bytes
        self._timeout_s = timeout_s
        self._max_timeout_s = max_timeout_s
        self._requests = requests

    def take(
        self, calls: list[HotCall], started_s: float, lets_pass: Callable[[str], bool]
    ) -> list[HotCall]:
        """Take the sends that are alike; return those that are to be taken one by one.

        Args:
            calls: SendMessages of a turn.
            started_s: when the turn began.
            lets_pass: whether calls of a client's address need not wait.
        """
        try:
            groups, others = self._pass.gather(calls, self._max_request_bytes)
        except Exception as failure:  # noqa: BLE001 - each shows by itself whether it is the one
            self._requests.failed(SEND, failure)
            return calls
        left: list[HotCall] = []
        for alike in _without_doubt(map(Alike._make, groups), others, left):
            if not (lets_pass(alike.peer) and self._takes(alike, started_s)):
                left += alike.calls
        if not left:
            return others
        numbers = {id(call): number for number, call in enumerate(calls)}
        return sorted(left + others, key=lambda call: numbers[id(call)])

    def _takes(self, alike: Alike, started_s: float) -> bool:
        metadata = alike.metadata
        try:
            principal = self._access.known_principal(metadata, alike.peer)
            if principal is None or QUEUE_HEADER in metadata:
                return False
            caller = caller_of(metadata)
            topic = alike.namespace or caller.namespace, alike.topic
            principal.require(*send_right(topic))
            check_not_own_topic(alike.topic)
            deadline_s = started_s + time_for(alike.left_s, self._timeout_s, self._max_timeout_s)
            return self._gather(
                AlikeSend(
                    alike.calls,
                    alike.message_ids,
                    alike.sizes_bytes,
                    topic,
                    alike.message_type,
                    caller.client_id,
                    principal.user,
                    alike.peer,
                    started_s,
                    deadline_s,
                )
            )
        except RequestError:
            # Each of them is refused by itself.
            return False
        except Exception as failure:  # noqa: BLE001 - each shows by itself whether it is the one
            self._requests.failed(SEND, failure)
            return False


def _without_doubt(
    groups: Iterable[Alike], others: Sequence[HotCall], left: list[HotCall]
) -> list[Alike]:
    """Return the groups that keep the order of FIFO messages; calls of the rest are left.

    FIFO messages of a client that come in one turn stay in order, so they are taken together only
    if they are one group and no call of their client is in none.
    """
    all_groups = list(groups)
    ordered = Counter(one.peer for one in all_groups if one.message_type == MessageType.FIFO)
    if not ordered:
        return all_groups
    alone = {call.peer for call in others} | {peer for peer, count in ordered.items() if count > 1}
    kept = []
    for one in all_groups:
        if one.message_type == MessageType.FIFO and one.peer in alone:
            left += one.calls
        else:
            kept.append(one)
    return kept
