"""The queues of a topic that a pop looks at, and their order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import MoveRow
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.pop_calls import PopCall, Scan
from strata_storage.rows.machine import GroupMachine

# Queues remembered of one attempt; others are asked in turn.
_QUEUES_PER_ATTEMPT = 32


class QueueOrder:
    """The queues of pops of one leader in one term: in turn, and first those of the same attempt.

    Args:
        machine: knows which queues are here.
        options: how much is remembered.
    """

    def __init__(self, machine: GroupMachine, options: EngineOptions) -> None:
        self._machine = machine
        self._options = options
        # (consumer group, topic) -> which queue was looked at first; turns so that none starves.
        self._turns: OrderedDict[tuple[int, int], int] = OrderedDict()
        # FIFO: (consumer group, topic, attempt) -> queues that served it, asked first on a repeat.
        self._attempts: OrderedDict[tuple[int, int, int], tuple[int, ...]] = OrderedDict()
        # The same -> marks of the brokers through which its leases are not given any more.
        self._passed_on: OrderedDict[tuple[int, int, int], frozenset[int]] = OrderedDict()

    def sealed(self, call: PopCall) -> Sequence[tuple[int, MoveRow]]:
        """Return which of the queues that a pop asks for are sealed, and where they went.

        Raises:
            Refused: a queue is not here.
        """
        if not self._machine.moves:
            return ()
        return self._machine.sealed_of(call.topic.topic_id, self.queues_here(call))

    def queues_here(self, call: PopCall) -> Sequence[int]:
        """Return the queues that a pop asks for, as far as they are here.

        Raises:
            Refused: it names one queue, which is not here.
        """
        topic = call.topic
        if call.queue >= 0:
            if not self._machine.serves_queue(topic, call.queue):
                raise Refused(
                    pb.OUTCOME_WRONG_GROUP,
                    f"queue {call.queue} of topic {topic.topic_id} is not in raft group "
                    f"{self._machine.raft_group}",
                )
            return (call.queue,)
        return self._machine.queues_here(topic)

    def queues(self, call: PopCall) -> Sequence[int]:
        """Return the queues that a pop looks at, the first one first.

        Raises:
            Refused: see `queues_here`.
        """
        topic = call.topic
        queues = self.queues_here(call)
        if call.levels is not None:
            return call.levels.chosen(queues)
        if len(queues) <= 1 or call.queue >= 0:
            return queues
        key = (call.consumer_group_id, topic.topic_id)
        turn = (self._turns.get(key, -1) + 1) % len(queues)
        self._turns[key] = turn
        self._turns.move_to_end(key)
        if len(self._turns) > self._options.lease_sets_max:
            self._turns.popitem(last=False)
        turned = (*queues[turn:], *queues[:turn])
        served = self._attempts.get((*key, call.take.attempt)) if call.take.attempt else None
        if served:
            return (*served, *(queue for queue in turned if queue not in served))
        return turned

    def remember_attempt(self, call: PopCall, scan: Scan) -> None:
        """Let a repeat of an ordered group's pop look first where it was served."""
        key = _attempt_of(call)
        self._attempts[key] = tuple(
            islice(
                dict.fromkeys(leased.lease_set.key[2] for leased in scan.leases),
                _QUEUES_PER_ATTEMPT,
            )
        )
        if len(self._attempts) > self._options.attempts_max:
            self._attempts.popitem(last=False)

    def pass_on(self, call: PopCall, brokers: Iterable[int]) -> None:
        """Note that an attempt's leases are given through another broker than these (marks)."""
        key = _attempt_of(call)
        before = self._passed_on.pop(key, frozenset())
        self._passed_on[key] = before.union(brokers) - {call.take.broker}
        if len(self._passed_on) > self._options.attempts_max:
            self._passed_on.popitem(last=False)

    def is_passed_on(self, call: PopCall) -> bool:
        """Whether the client of a pop has gone on with its attempt to another broker.

        The pop was under way for long, and takes nothing: its answer would reach nobody, and the
        client works on what the other broker gave it.
        """
        return call.take.broker in self._passed_on.get(_attempt_of(call), ())


def _attempt_of(call: PopCall) -> tuple[int, int, int]:
    return call.consumer_group_id, call.topic.topic_id, call.take.attempt
