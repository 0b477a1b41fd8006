"""Gathers acks of many requests into one Ack call at a time per storage node (rule 15).

Acks may be repeated freely: the ack of a lease that is gone already is OK (rule 24). An ack whose
client has gone is sent once and not repeated. Invariants: every ack is answered soon after its
deadline, whatever waits before it in its lane; a lane exists only while it has work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import OVERLOADED, AngeliaError
from strata_broker.base import errors
from strata_broker.base.failures import passed_over
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.base.watermarks import show_watermark
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.lanes import LEAST_TRY_S, NodeLanes
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import (
    LED_ELSEWHERE,
    SERVICE,
    TELLS_NOTHING,
    refused_repeat,
)
from strata_mq.requests import RequestError
from strata_runtime.backoff import Backoff
from strata_runtime.limits import Limit
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks

_ACK = SERVICE + "Ack"
_OK_OUTCOMES = frozenset((storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK))
# A search for late acks takes time for each ack that waits.
_SWEEP_S = 0.25


class AckWaiter(Protocol):
    """A waiter for acks, each of which has a number of the waiter's own."""

    def settled(self, numbers: Sequence[int], failures: Mapping[int, RequestError]) -> None:
        """The leases are gone, except those of `failures`, by number."""

    def failed(self) -> None:
        """A call of the waiter failed unexpectedly: answer with an error, expect nothing more."""

    def gone(self, number: int) -> bool:
        """Whether the client that sent an ack has gone."""


class _Acks(NamedTuple):
    """Acks of one waiter; a lease is a serialised field of GroupLeases."""

    leases: Sequence[bytes]
    waiter: AckWaiter
    numbers: Sequence[int]
    deadline_s: float
    # An earlier try may have been carried out.
    repeated: bool = False

    def part(self, begin: int, end: int | None = None) -> _Acks:
        """Return some of them."""
        return self._replace(leases=self.leases[begin:end], numbers=self.numbers[begin:end])


class _GroupLane:
    """Acks for one raft group, oldest first."""

    __slots__ = ("acks", "asked", "backoff", "calls", "pause", "raft_group", "sweep_at_s")

    def __init__(self, raft_group: int, backoff: Backoff) -> None:
        self.raft_group = raft_group
        self.backoff = backoff
        self.acks: deque[_Acks] = deque()
        # The node of the newest call under way; more acks may become ready meanwhile.
        self.asked = ""
        # Calls under way: another node may be asked while one that led before has not answered.
        self.calls = 0
        # Between a refusal and the repeat nothing is sent.
        self.pause: asyncio.TimerHandle | None = None
        self.sweep_at_s = 0.0

    def ended(self, node: str) -> None:
        """Note the end of a call at a node."""
        self.calls -= 1
        if self.asked == node:
            self.asked = ""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, is under way or will be repeated."""
        return not self.acks and not self.calls and self.pause is None


class Acker:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        leaders: LeaderMap,
        channels: NodeChannels,
        config: StorageClientSection,
        *,
        max_waiting: int,
        runtime: Runtime,
        tasks: Tasks,
        requests: RequestTasks,
    ) -> None:
        metrics = runtime.metrics
        self._leaders = leaders
        self._channels = channels
        self._config = config
        self._clock = runtime.clock
        self._random = runtime.random
        self._requests = requests
        self._groups: dict[int, _GroupLane] = {}
        self._ready: dict[str, dict[int, _GroupLane]] = {}
        self._lanes = NodeLanes("ack", tasks, self._exchange)
        leaders.on_leader(self._led_elsewhere)
        self._limit = Limit("acks waiting", max_waiting, "acks", metrics=metrics)
        show_watermark(metrics, "ack", lambda: self._limit.used)
        self._retries = metrics.counter("strata_broker_storage_retries_total")

    @property
    def lane_count(self) -> int:
        """Number of raft groups with acks that wait or are under way."""
        return len(self._groups)

    def ack(
        self,
        raft_group: int,
        leases: Sequence[bytes],
        waiter: AckWaiter,
        numbers: Sequence[int],
        deadline_s: float,
    ) -> None:
        """Send acks; the waiter gets the results, or at once a refusal beyond the limit.

        Args:
            raft_group: of all leases.
            leases: what is acked, each as `handles.lease_field` serialises it.
            waiter: hears of each ack once.
            numbers: of the acks, for the waiter.
            deadline_s: of all acks (monotonic seconds).
        """
        if not self._limit.try_take(len(leases)):
            if len(leases) == 1:
                waiter.settled(numbers, {numbers[0]: errors.too_many_requests()})
                return
            # There may be room for some of them.
            for lease, number in zip(leases, numbers, strict=True):
                self.ack(raft_group, (lease,), waiter, (number,), deadline_s)
            return
        lane = self._groups.get(raft_group)
        if lane is None:
            backoff = Backoff(self._config.first_retry_ms, self._config.max_retry_ms, self._random)
            lane = self._groups[raft_group] = _GroupLane(raft_group, backoff)
        lane.acks.append(_Acks(leases, waiter, numbers, deadline_s))
        if lane.pause is None:
            self._make_ready(lane)

    def forget(self, node_id: str) -> None:
        """The node is no member any more; what waits for it is handled as before."""
        self._lanes.forget(node_id)

    def _make_ready(self, lane: _GroupLane) -> None:
        node = self._leaders.node_of(lane.raft_group)
        if node is None:
            self._repeat_later(lane, [], "unknown raft group")
            return
        self._ready.setdefault(node, {})[lane.raft_group] = lane
        self._lanes.wake(node)

    async def _exchange(self, node: str) -> bool:
        """Send one Ack for every ready raft group; False: none is ready."""
        taken = self._take_ready(node)
        if not taken:
            return False
        request = storage_pb2.AckRequest()
        deadline_s = 0.0
        for lane, acks in taken:
            repeated = any([one.repeated for one in acks])
            group = request.groups.add(raft_group=lane.raft_group, repeated=repeated)
            group.MergeFromString(b"".join(chain.from_iterable([one.leases for one in acks])))
            deadline_s = max(deadline_s, *[one.deadline_s for one in acks])
            lane.asked = node
            lane.calls += 1
        # A call with the longest deadline of its acks would delay the acks behind it.
        most_ms = self._config.call_timeout_ms
        if any(self._leaders.has_other_replicas(lane.raft_group) for lane, _ in taken):
            most_ms = self._config.try_timeout_ms
        left_s = max(deadline_s - self._clock.monotonic_s(), LEAST_TRY_S)
        try_s = min(left_s, most_ms / 1000)
        try:
            async with self._lanes.attempt(node):
                response = await self._channels.to(node).call(
                    _ACK, request, storage_pb2.AckResponse, timeout_s=try_s
                )
        except (AngeliaError, TimeoutError) as failure:
            for lane, acks in taken:
                self._lost(lane, acks, node, failure)
                self._drop_idle(lane)
            return True
        self._leaders.answered(node)
        results = {result.raft_group: result for result in response.groups}
        for lane, acks in taken:
            self._settle(lane, acks, node, results.get(lane.raft_group))
            self._drop_idle(lane)
        return True

    def _take_ready(self, node: str) -> list[tuple[_GroupLane, list[_Acks]]]:
        ready = self._ready.pop(node, {})
        taken = []
        room = self._config.max_acks_per_call
        now_s = self._clock.monotonic_s()
        for lane in ready.values():
            # A lane without acks may have been dropped, and another lane of its raft group made.
            if lane.pause is not None or not lane.acks:
                continue
            if self._leaders.node_of(lane.raft_group) != node:
                # It waited behind a call, and another node leads it since.
                self._make_ready(lane)
                continue
            in_time = self._take_from(lane, room, now_s)
            if in_time:
                room -= sum([len(one.leases) for one in in_time])
                taken.append((lane, in_time))
            if lane.acks:
                self._make_ready(lane)
            elif not in_time:
                self._drop_idle(lane)
        return taken

    def _take_from(self, lane: _GroupLane, room: int, now_s: float) -> list[_Acks]:
        """Take at most so many acks of a lane; return those that are not late."""
        in_time = []
        while lane.acks and room > 0:
            one = lane.acks.popleft()
            if len(one.leases) > room:
                lane.acks.appendleft(one.part(room))
                one = one.part(0, room)
            room -= len(one.leases)
            if one.deadline_s > now_s:
                in_time.append(one)
            else:
                self._fail([one], errors.timed_out())
        return in_time

    def _settle(
        self,
        lane: _GroupLane,
        acks: list[_Acks],
        node: str,
        result: storage_pb2.GroupOutcomes | None,
    ) -> None:
        lane.ended(node)
        if result is None:
            self._fail(acks, errors.refused(storage_pb2.OUTCOME_INVALID, "no result for an ack"))
            return
        outcome = result.refusal.outcome
        if outcome in errors.REPEATED_OUTCOMES:
            self._leaders.refused(lane.raft_group, node, result.refusal.leader_node_id)
            # Leadership may be lost while a proposal is on its way to a majority.
            unknown = outcome == storage_pb2.OUTCOME_NOT_LEADER
            self._repeat_later(lane, acks, storage_pb2.Outcome.Name(outcome), unknown=unknown)
        elif outcome not in _OK_OUTCOMES:
            refused = errors.refused(outcome, result.refusal.reason)
            of_repeat = refused_repeat(refused) if outcome in TELLS_NOTHING else refused
            for one in acks:
                self._fail([one], of_repeat if one.repeated else refused)
        else:
            lane.backoff.reset()
            outcomes, at = [*result.outcomes], 0
            for one in acks:
                own = outcomes[at : at + len(one.leases)]
                at += len(one.leases)
                self._tell(one, _failures(one.numbers, own))

    def _lost(
        self,
        lane: _GroupLane,
        acks: list[_Acks],
        node: str,
        failure: AngeliaError | TimeoutError,
    ) -> None:
        lane.ended(node)
        if isinstance(failure, TimeoutError):
            # Given up: another node leads now, perhaps for another raft group of the call only.
            self._repeat_later(lane, acks, LED_ELSEWHERE, unknown=True)
        elif failure.code in errors.REPEATED_ANGELIA_CODES:
            self._leaders.failed(lane.raft_group, node, failure.code)
            self._repeat_later(lane, acks, failure.code, unknown=failure.code != OVERLOADED)
        else:
            self._fail(acks, errors.lost(failure))

    def _repeat_later(
        self, lane: _GroupLane, acks: list[_Acks], reason: str, *, unknown: bool = False
    ) -> None:
        self._retries.add(1, {"reason": reason})
        if unknown:
            acks = [one._replace(repeated=True) for one in acks]
        for one in reversed(acks):
            if (kept := self._without_gone(one)) is not None:
                lane.acks.appendleft(kept)
        if lane.pause is None and lane.acks:
            pause_s = lane.backoff.next_s()
            lane.pause = asyncio.get_running_loop().call_later(pause_s, self._repeat, lane)

    def _repeat(self, lane: _GroupLane) -> None:
        lane.pause = None
        self._sweep(lane)
        if lane.acks:
            self._make_ready(lane)
        else:
            self._drop_idle(lane)

    def _sweep(self, lane: _GroupLane) -> None:
        """Answer late acks anywhere in the lanes: clients choose their deadlines."""
        now_s = self._clock.monotonic_s()
        if now_s < lane.sweep_at_s:
            return
        lane.sweep_at_s = now_s + _SWEEP_S
        waiting = deque[_Acks]()
        for one in lane.acks:
            if one.deadline_s <= now_s:
                self._fail([one], errors.timed_out(self._leaders.explain(lane.raft_group)))
            elif (kept := self._without_gone(one)) is not None:
                waiting.append(kept)
        lane.acks = waiting

    def _without_gone(self, acks: _Acks) -> _Acks | None:
        """End acks, sent or not, that are not worth another try; return the others."""
        gone = [acks.waiter.gone(number) for number in acks.numbers]
        if not any(gone):
            return acks
        kept = [at for at, is_gone in enumerate(gone) if not is_gone]
        ended = [number for number, is_gone in zip(acks.numbers, gone, strict=True) if is_gone]
        self._fail([acks._replace(numbers=ended)], errors.timed_out())
        if not kept:
            return None
        leases = [acks.leases[at] for at in kept]
        return acks._replace(leases=leases, numbers=[acks.numbers[at] for at in kept])

    def _drop_idle(self, lane: _GroupLane) -> None:
        if lane.is_idle and self._groups.get(lane.raft_group) is lane:
            del self._groups[lane.raft_group]

    def _led_elsewhere(self, raft_group: int, leader: str) -> None:
        """A node says that it leads: the raft group's acks go there."""
        lane = self._groups.get(raft_group)
        if lane is None:
            return
        lane.backoff.reset()
        if lane.pause is not None:
            lane.pause.cancel()
            self._repeat(lane)
        elif lane.asked and lane.asked != leader:
            self._lanes.give_up(lane.asked)
        elif lane.acks:
            # They wait behind a call to another node, which may be silent.
            self._make_ready(lane)

    def _fail(self, acks: list[_Acks], failure: RequestError) -> None:
        for one in acks:
            self._tell(one, dict.fromkeys(one.numbers, failure))

    def _tell(self, acks: _Acks, failures: Mapping[int, RequestError]) -> None:
        """Tell one waiter; its failure does not affect the other waiters of the lane."""
        self._limit.give_back(len(acks.numbers))
        try:
            acks.waiter.settled(acks.numbers, failures)
        except Exception as unexpected_failure:  # noqa: BLE001 - it ends this request only
            self._requests.failed("tell who acks", unexpected_failure)
            with passed_over(self._requests, "refuse an ack"):
                acks.waiter.failed()


def _failures(numbers: Sequence[int], outcomes: Sequence[int]) -> dict[int, RequestError]:
    """Return what was refused, by number; an ack without outcome was."""
    if outcomes.count(storage_pb2.OUTCOME_OK) == len(numbers):
        return {}
    given = chain(outcomes, repeat(storage_pb2.OUTCOME_INVALID))
    return {
        number: errors.refused(outcome)
        for number, outcome in zip(numbers, given, strict=False)
        if outcome != storage_pb2.OUTCOME_OK
    }
