"""Faults put into our own code, one at a time: the simulation has to find each of them.

Run as a script it applies one and runs seeds until a verdict is bad:
`python tests/sim/mutations.py NAME SEED...`; it prints what was found as a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.leases.ended import EndingLeases
from strata_mq.slots import FIRST_LITE_QUEUE
from strata_multiraft.driver.ticker import Ticker
from strata_multiraft.replica.replica import Replica
from strata_nameserver.drafts import slot_moves
from strata_raft import RawNode, leader
from strata_raft.log import RaftLog
from strata_raft.types import Configuration, Entry
from strata_runtime import logs
from strata_seglog.tail import Tail
from strata_sim.scenario import Scenario, ScenarioOptions, at_rest, with_lite_topics
from strata_storage.base.dedupe import DedupeWindow
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.pops.lease_calls import LeaseCalls
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.rehash import Rehashes
from strata_storage.process import new_leaders
from strata_storage.rows.machine import GroupMachine


def acknowledge_before_sync() -> None:
    """Take what is written for durable, without a sync (rule 7)."""
    Tail._sync_file = lambda self, file: None  # type: ignore[method-assign]


def commit_alone() -> None:
    """Let the leader commit what it alone holds."""

    def own(configuration: Configuration, match: Mapping[int, int]) -> int:
        return max(match.values(), default=0)

    leader.quorum_index = own  # type: ignore[attr-defined]


def forget_vote() -> None:
    """Vote again in the same term, for somebody else (thesis 3.4)."""
    original = RawNode._answer_vote_request

    def answer(self: RawNode, request: Any) -> None:
        self._state.vote = 0
        self._state.leader_id = 0
        original(self, request)

    RawNode._answer_vote_request = answer  # type: ignore[method-assign]


def skip_an_entry() -> None:
    """Apply every fortieth entry as if it were empty, on one replica."""
    original = GroupMachine._apply

    def apply(self: GroupMachine, batch: Any, entry: Entry) -> int:
        if entry.index % 40 == 0 and self.listener is None:
            return 0
        return original(self, batch, entry)

    GroupMachine._apply = apply  # type: ignore[method-assign]


def lose_dedupe_window() -> None:
    """Begin a leadership with an empty window of message ids (rule 23)."""

    def empty(
        log: Any, replica_id: int, last_index: int, now_ms: int, options: Any
    ) -> DedupeWindow:
        return DedupeWindow(options)

    new_leaders.load_window = empty  # type: ignore[attr-defined]


def forget_message_ids() -> None:
    """Take every message for a new one, and look none up (rule 23)."""
    GroupAppender._looks_up = lambda self, *_, **__: None  # type: ignore[method-assign]
    DedupeWindow.all_new = lambda self, topic_id, ids: True  # type: ignore[method-assign]
    DedupeWindow.known = lambda self, topic_id, message_id: False  # type: ignore[method-assign]


def keep_conflicting_entries() -> None:
    """Find no conflict between a follower's log and the leader's (thesis 3.5)."""
    original = RaftLog.first_conflict

    def none(self: RaftLog, entries: Sequence[Entry]) -> int:
        known = sum(1 for entry in entries if entry.index <= self.last_index)
        return max(known, original(self, entries))

    RaftLog.first_conflict = none  # type: ignore[method-assign]


def read_without_barrier() -> None:
    """Serve reads from what is applied, whoever leads by now (rule 3)."""

    async def at_once(self: Replica) -> int:
        return self.applied_index

    Replica.read_barrier = at_once  # type: ignore[method-assign]


def never_wake() -> None:
    """Let a raft group that rests sleep on, whatever happens (rule 13)."""
    Ticker.wake = lambda self, replica: None  # type: ignore[method-assign]


def keep_acks_to_itself() -> None:
    """Let the leader alone know that a message is consumed (rule 24)."""
    original, propose = LeaseCalls.ack, LeaseSets.propose

    def ack(self: LeaseCalls, leases: Any, *, repeated: bool = False) -> Any:
        LeaseSets.propose = lambda self, sections: None  # type: ignore
        try:
            return original(self, leases, repeated=repeated)
        finally:
            LeaseSets.propose = propose  # type: ignore[method-assign]

    LeaseCalls.ack = ack  # type: ignore


def ignore_leases() -> None:
    """Hand out again what somebody holds (rule 24)."""
    original = EndingLeases.expire

    def expire(self: EndingLeases, now_ms: int) -> Any:
        return original(self, now_ms + 2_000)

    EndingLeases.expire = expire  # type: ignore[method-assign]


def grant_before_revoke() -> None:
    """Give slots to their new raft group before the old one has given them up (rule 17)."""
    original = slot_moves.begin

    def begin(draft: Any, steps: Any) -> Any:
        moves = original(draft, steps)
        for move in moves:
            slot_moves._put_owner(draft, move.slots, move.to_raft_group)
        return moves

    slot_moves.begin = begin


def leave_queues_early() -> None:
    """Put message groups where a new queue count says while the old queue is full (rule 23)."""

    async def end(
        self: Rehashes, topic_id: int, queue: int, end_offset: int, named: Iterable[int]
    ) -> int:
        return end_offset

    Rehashes._cursor = end  # type: ignore[method-assign]


def deliver_lite_topics_at_once() -> None:
    """Deliver a message of a lite topic before the ones before it were acknowledged (rule 24)."""
    original = StorageClient.pop

    def pop(self: StorageClient, request: Any, *arguments: Any, **named: Any) -> Any:
        request.fifo = request.fifo and request.queue < FIRST_LITE_QUEUE
        return original(self, request, *arguments, **named)

    StorageClient.pop = pop  # type: ignore[method-assign]


# The seed that found a fault last is tried first; a change of our code may make it another one.
_FOUND_LAST = {
    "acknowledge_before_sync": 3,
    "grant_before_revoke": 4,
    "commit_alone": 18,
    "forget_message_ids": 3,
    "ignore_leases": 5,
    "keep_conflicting_entries": 2,
    "lose_dedupe_window": 30,
    "never_wake": 16,
    "read_without_barrier": 14,
}


# Rule, and the violation that it must cause.
_BREAKS: dict[str, tuple[int, str]] = {
    "acknowledge_before_sync": (7, "lost|is damaged|applied index|a commit beyond the log"),
    "commit_alone": (12, "leader of term|was committed in term|lost"),
    "forget_vote": (12, "two leaders"),
    "skip_an_entry": (1, "different rows"),
    "lose_dedupe_window": (23, "stored twice|dead letter doubled"),
    "forget_message_ids": (23, "stored twice|doubled"),
    "keep_conflicting_entries": (12, "was committed in term|log matching"),
    "read_without_barrier": (3, "lost|not linearizable"),
    "never_wake": (13, "stuck|missing"),
    "keep_acks_to_itself": (24, "came again|different rows"),
    "ignore_leases": (24, "two holders"),
    "leave_queues_early": (23, "overtaken|out of order"),
    "grant_before_revoke": (17, "slot"),
    "deliver_lite_topics_at_once": (24, "lite message too early|lite message overtaken"),
}


# Runs that show a fault, where the usual ones do not.
_OPTIONS = {
    "never_wake": at_rest,
    "deliver_lite_topics_at_once": with_lite_topics,
}


@dataclass(frozen=True)
class Mutation:
    """A fault in our own code.

    Attributes:
        apply: puts it in.
        rule: number of the rule that it breaks.
        seeds: those that are tried, in order, until one finds it.
        finds: pattern of the violation that it must cause; another one does not count.
        options: of the runs that show it.
    """

    apply: Callable[[], None]
    rule: int
    seeds: Sequence[int]
    finds: str
    options: Callable[[], ScenarioOptions] = ScenarioOptions


def _seeds(name: str) -> Sequence[int]:
    return list(dict.fromkeys((_FOUND_LAST.get(name, 1), *range(1, 31))))


def _mutation(apply: Callable[[], None]) -> Mutation:
    rule, finds = _BREAKS[apply.__name__]
    options = _OPTIONS.get(apply.__name__, ScenarioOptions)
    return Mutation(apply, rule, _seeds(apply.__name__), finds, options)


MUTATIONS: dict[str, Mutation] = {
    apply.__name__: _mutation(apply)
    for apply in (
        acknowledge_before_sync,
        commit_alone,
        forget_vote,
        skip_an_entry,
        lose_dedupe_window,
        forget_message_ids,
        keep_conflicting_entries,
        read_without_barrier,
        never_wake,
        keep_acks_to_itself,
        ignore_leases,
        leave_queues_early,
        grant_before_revoke,
        deliver_lite_topics_at_once,
    )
}


def main() -> int:
    """Apply a mutation and run seeds; return 0 if it was caught."""
    name, *seeds = sys.argv[1:]
    logs.configure(level="critical", stream=sys.stderr)
    mutation = MUTATIONS[name]
    mutation.apply()
    for count, seed in enumerate(map(int, seeds), 1):
        verdict = Scenario(seed, mutation.options()).run()
        found = [one for one in verdict.violations if re.search(mutation.finds, one)]
        if found:
            print(json.dumps({"seed": seed, "tried": count, "found": found[0]}))
            return 0
        if verdict.violations:
            print(json.dumps({"seed": seed, "other": verdict.violations[0]}))
    print(json.dumps({"tried": len(seeds), "found": ""}))
    return 1


if __name__ == "__main__":
    assert os.environ.get("PYTHONHASHSEED") == "0", "names must hash the same in every run"
    sys.exit(main())
