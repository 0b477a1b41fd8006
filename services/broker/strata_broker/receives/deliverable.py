"""Whether a consumer group could pop something, and the wait until it could; without leases.

Calls that wait for this are in the lines of the `WaitingRoom`, beside receives, and the same news
wakes them (rule 35): a look that finds nothing asks the storage nodes to tell when that changes.
Invariants: one call of a line looks while the others wait; a raft group that does not promise to
tell is looked at again at a bounded pace; a promise counts for the time that a place is quiet at
most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.places import ANY_QUEUE
from strata_broker.receives.consumer_states import ConsumerStates, state_request
from strata_broker.receives.waiting_room import Line, LineKey, WaitingRoom
from strata_broker.storage_client import epochs
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.pop_ends import PopTicket
from strata_broker.storage_client.quiet_places import ConsumerPlace, Look
from strata_runtime.clock import Clock

_RPC = "GetConsumerState"


class PopSubject(NamedTuple):
    """The source of a pop.

    Attributes:
        group: who would pop.
        topic: of the messages.
        queue: its number, or ANY_QUEUE.
    """

    group: meta_pb2.ConsumerGroup
    topic: TopicRow
    queue: int

    @property
    def line(self) -> LineKey:
        """The line of those who wait for it; no receive is in it."""
        group_id = self.group.consumer_group_id
        return LineKey(self.topic.topic_id, group_id, b"", ("deliverable", self.queue))


class DeliverableLooks:
    """See the module docstring. Used on the event loop only.

    Args:
        boot_id: of this broker.
        view: knows the raft groups of topics.
        holders: asks the raft groups.
        room: lines of those who wait.
        check_s: seconds between two looks at a raft group that does not tell.
        clock: monotonic time.
    """

    def __init__(
        self,
        boot_id: int,
        view: MetadataView,
        holders: HolderCalls,
        *,
        room: WaitingRoom,
        check_s: float,
        clock: Clock,
    ) -> None:
        self._boot_id = boot_id
        self._view = view
        self._holders = holders
        self._states = ConsumerStates(holders)
        self._room = room
        self._check_s = check_s
        self._clock = clock

    async def states(self, subject: PopSubject) -> list[storage_pb2.ConsumerQueueState]:
        """Return the state of each queue, by number.

        Raises:
            RequestError: storage refused, or the metadata did not catch up in time.
        """
        group, topic, queue = subject
        if queue == ANY_QUEUE:
            return await self._states.of_topic(group, topic)
        return await self._states.of_queue(group, topic, queue)

    async def is_deliverable(self, subject: PopSubject) -> bool:
        """Whether some message is new to the group, or waits to be delivered again.

        A message of an ordered group may still have to wait for an earlier one: then a pop waits.

        Raises:
            RequestError: see `states`.
        """
        return _has_any(await self.states(subject))

    async def wait(
        self, subject: PopSubject, ticket: PopTicket, wait_s: float, client_id: str
    ) -> bool:
        """Wait until something is deliverable; False: the time is over, or the ticket is ended.

        Args:
            subject: of the wait.
            ticket: ends the wait.
            wait_s: seconds to wait at most.
            client_id: who waits.

        Raises:
            RequestError: see `states`.
        """
        ends_s = self._clock.monotonic_s() + wait_s
        seat = self._room.enter(
            subject.line,
            ticket,
            lambda line: self._next_look_s(subject, line),
            client_id=client_id,
        )
        try:
            while (left_s := ends_s - self._clock.monotonic_s()) > 0:
                if not await seat.turn(left_s):
                    return False
                if await self._look(subject, seat.line):
                    return True
            return False
        finally:
            seat.leave()

    def _next_look_s(self, subject: PopSubject, line: Line) -> float:
        """Return when a raft group is to be looked at; 0.0: now."""
        topic = self._view.topic_by_id(subject.topic.topic_id) or subject.topic
        groups = [
            raft_group
            for raft_group, queues in self._view.holders(topic).items()
            if subject.queue == ANY_QUEUE or subject.queue in queues
        ]
        if not groups:
            # Nobody has the queue now; a new placement is news.
            return self._clock.monotonic_s() + self._check_s
        return min(line.paused_until_s(self._place(subject, each)) for each in groups)

    def _place(self, subject: PopSubject, raft_group: int) -> ConsumerPlace:
        group, topic, queue = subject
        return ConsumerPlace(raft_group, topic.topic_id, group.consumer_group_id, queue)

    async def _look(self, subject: PopSubject, line: Line) -> bool:
        """Look at all raft groups, which are to tell when there is something, if there is nothing.

        Raises:
            RequestError: see `states`.
        """
        with ExitStack() as stack:
            looks: dict[int, Look] = {}
            answers = await self._ask(subject, looks, stack)
            promised: defaultdict[int, list[bool]] = defaultdict(list)
            for raft_group, answer in answers:
                promised[raft_group].append(looks[raft_group].is_promised(answer.told_later))
            found = _has_any(epochs.join_states(each for _, one in answers for each in one.queues))
            line.left_behind(more=found)
            if found:
                # The next one looks, whatever an earlier look found.
                line.hurry(None)
                return True
            for raft_group, look in looks.items():
                if look.told:
                    line.hurry(look.place)
                elif promised[raft_group] and all(promised[raft_group]):
                    line.rest(look.place, self._room.quiet.max_quiet_s)
                else:
                    line.rest(look.place, self._check_s)
        return False

    async def _ask(
        self, subject: PopSubject, looks: dict[int, Look], stack: ExitStack
    ) -> Sequence[tuple[int, storage_pb2.GetConsumerStateResponse]]:
        """Ask all raft groups; `looks` gets one for each, which ends with the stack."""
        group, queue = subject.group, subject.queue
        topic = self._view.topic_by_id(subject.topic.topic_id) or subject.topic

        def request_for(
            raft_group: int, queues: Sequence[int]
        ) -> storage_pb2.GetConsumerStateRequest:
            look = looks.get(raft_group)
            if look is None:
                place = self._place(subject, raft_group)
                look = looks[raft_group] = stack.enter_context(self._room.quiet.look(place))
            request = state_request(group, topic, raft_group, queues)
            request.broker_boot_id, request.tell_queue = self._boot_id, queue
            request.tell_stream = look.asks_leader()
            return request

        answer_type = storage_pb2.GetConsumerStateResponse
        if queue == ANY_QUEUE:
            return await self._holders.of_topic(topic, _RPC, answer_type, request_for)
        return await self._holders.of_queue(
            topic, queue, _RPC, answer_type, lambda raft_group: request_for(raft_group, (queue,))
        )


def head_of(state: storage_pb2.ConsumerQueueState) -> int:
    """Return the first offset that the group was never given.

    A group without a position has been given nothing: it begins at the first message, also where
    its first pop would begin later.
    """
    return max(state.head, state.min_offset) if state.started else state.min_offset


def _has_any(states: Sequence[storage_pb2.ConsumerQueueState]) -> bool:
    return any(state.waiting or head_of(state) < state.next_offset for state in states)
