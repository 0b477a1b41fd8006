"""Names of lite topics at one leader in one term: new ones get numbers, quiet ones end.

Decided at once on applied rows and on what is in flight, answered when the entry is applied. A
number is never given twice. Invariants: a lite topic ends only while no append and no lease is
there, and takes no append from that decision on; brokers with an interest in it are told of its
end.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, LiteChange, encode_lite_topics
from strata_mq.layout import LiteParentRow, QueueRow, text_hash
from strata_mq.slots import MAX_QUEUE, lite_home, lite_queue, queue_of_hash
from strata_storage.base.errors import Refused
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.proposer import committed
from strata_storage.lite.options import LifetimeOf, LiteOptions
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

_Name = tuple[int, bytes]
_Parent = tuple[int, int]


class AppliedParents(Protocol):
    """Lite topics as of the applied index."""

    @property
    def parents(self) -> Mapping[_Parent, LiteParentRow]:
        """(parent topic, queue) -> row."""

    @property
    def count(self) -> int:
        """Lite topics there are."""


class LiteLeader:
    """See the module docstring.

    Args:
        machine: of the raft group.
        applied: what is applied.
        leader: of the raft group.
        options: limits.
    """

    def __init__(
        self,
        machine: GroupMachine,
        applied: AppliedParents,
        leader: GroupLeader,
        *,
        options: LiteOptions,
    ) -> None:
        self._machine = machine
        self._rows = machine.rows.lite
        self._applied = applied
        self._leader = leader
        self._options = options
        # Rows of parent queues with every command in flight, and how many commands there are.
        self._parents: dict[_Parent, tuple[LiteParentRow, int]] = {}
        # Names in flight -> (number, proposal); the count of `applied` does not have them.
        self._coming: dict[_Name, tuple[int, asyncio.Future[int]]] = {}
        self._leaving: set[_Name] = set()
        # (topic, number) behind which the next look for quiet lite topics begins.
        self._looked_at = (0, 0)

    def is_making(self, topic_id: int) -> bool:
        """Whether a change of a parent's lite topics is in flight."""
        return any(key[0] == topic_id for key in self._parents)

    async def numbers(
        self, topic: Topic, names: Sequence[bytes], *, before_new: Callable[[], None] | None
    ) -> Sequence[int]:
        """Return the numbers of lite topics; what is new gets one if there is `before_new`, else 0.

        Args:
            topic: the parent.
            names: of lite topics.
            before_new: refuses if there is no room to make lite topics; None: none are made.

        Raises:
            Refused: OUTCOME_WRONG_GROUP, a name is not of this raft group, or the parent is
                deleted; OUTCOME_LITE_TOPIC_LIMIT; OUTCOME_NOT_READY, a name is just ending; or not
                the leader. Nothing was changed; after the loss of leadership, perhaps.
        """
        self._leader.check_ready()
        topic_id = topic.topic_id
        if (DropKind.TOPIC, topic_id) in self._machine.dropped:
            raise Refused(pb.OUTCOME_WRONG_GROUP, f"topic {topic_id} is deleted")
        numbers: dict[bytes, int] = {}
        new: list[tuple[bytes, int]] = []
        waits: dict[asyncio.Future[int], None] = {}
        for name in dict.fromkeys(names):
            home = self._home_of(topic, name)
            if (topic_id, name) in self._leaving:
                raise Refused(pb.OUTCOME_NOT_READY, "the lite topic is about to end")
            coming = self._coming.get((topic_id, name))
            if coming is not None:
                numbers[name] = coming[0]
                waits[coming[1]] = None
                continue
            numbers[name] = self._rows.numbers.get(topic_id, name)
            if before_new is not None and not numbers[name]:
                self._check_open(topic_id, home)
                new.append((name, home))
        if new and before_new is not None:
            before_new()
            added, proposal = self._add(topic, new)
            numbers.update(added)
            waits[proposal] = None
        for proposal in waits:
            await committed(proposal)
        # The caller uses a number next, maybe on another connection: its rows must be there. And
        # rows tell the truth of a leader only.
        await self._leader.proposer.applied()
        return [numbers[name] for name in names]

    async def expire(self, lifetime_of: LifetimeOf) -> int:
        """End lite topics without traffic; return how many.

        One call looks at a bounded number of them; the next call goes on there.

        Args:
            lifetime_of: how long lite topics of a parent live without traffic.

        Raises:
            Refused: not now; it is tried again.
        """
        if not self._leader.ready or not self._applied.parents:
            return 0
        # No trim may be decided on rows that are about to go.
        async with self._leader.trims.turn():
            self._leader.sets.flush_kept()
            await self._leader.proposer.applied()
            quiet = self._quiet(lifetime_of)
            if not quiet:
                return 0
            groups = self._machine.rows.heads.consumer_groups
            proposals = [
                self._drop(topic_id, ended, list(groups(topic_id)))
                for topic_id, ended in quiet.items()
            ]
            for proposal in proposals:
                await committed(proposal)
            await self._leader.proposer.applied()
        return sum(map(len, quiet.values()))

    # Deciding -----------------------------------------------------------------------------------

    def _home_of(self, topic: Topic, name: bytes) -> int:
        """Return the queue of the parent that a name chooses.

        Raises:
            Refused: OUTCOME_WRONG_GROUP, it is not here; OUTCOME_INVALID, not a name.
        """
        try:
            home = home_of(name, topic.queue_count)
        except UnicodeDecodeError as error:
            raise Refused(pb.OUTCOME_INVALID, "the name of a lite topic is not UTF-8") from error
        if not self._machine.owns_queue(topic, home):
            raise Refused(
                pb.OUTCOME_WRONG_GROUP,
                f"queue {home} of topic {topic.topic_id} is not in this raft group",
            )
        return home

    def _check_open(self, topic_id: int, home: int) -> None:
        """Let the caller make lite topics in a queue of the parent.

        Raises:
            Refused: OUTCOME_WRONG_GROUP, the queue is moving to another raft group.
        """
        if self._leader.appends.is_sealed(topic_id, home):
            raise Refused(pb.OUTCOME_WRONG_GROUP, f"queue {home} of topic {topic_id} is sealed")

    def _parent(self, key: _Parent, queue_count: int = 0) -> LiteParentRow:
        in_flight = self._parents.get(key)
        if in_flight:
            return in_flight[0]
        return self._applied.parents.get(key) or LiteParentRow(0, 0, queue_count)

    def _add(
        self, topic: Topic, new: Sequence[tuple[bytes, int]]
    ) -> tuple[dict[bytes, int], asyncio.Future[int]]:
        """Propose new lite topics, (name, queue of the parent) each; return their numbers."""
        limit = self._options.max_lite_topics
        if self._applied.count + len(self._coming) + len(new) > limit:
            raise Refused(
                pb.OUTCOME_LITE_TOPIC_LIMIT,
                f"a raft group has at most {limit} lite topics (storage.max_lite_topics)",
            )
        by_home: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for name, home in new:
            parent = self._parent((topic.topic_id, home), topic.queue_count)
            if parent.queue_count != topic.queue_count:
                raise Refused(pb.OUTCOME_INVALID, "a parent of lite topics never gets more queues")
            turn = parent.next_turn + len(by_home[home])
            number = lite_queue(turn, home, topic.queue_count)
            if number > MAX_QUEUE:
                raise Refused(pb.OUTCOME_LITE_TOPIC_LIMIT, "the numbers of lite topics are used up")
            by_home[home].append((number, name))
        sections = []
        for home, added in by_home.items():
            turn, count, _ = self._parent((topic.topic_id, home))
            row = LiteParentRow(turn + len(added), count + len(added), topic.queue_count)
            sections.append(LiteChange(topic.topic_id, home, *row, tuple(added)))
        numbers = {name: number for added in by_home.values() for number, name in added}

        def applied() -> None:
            for name in numbers:
                del self._coming[topic.topic_id, name]

        proposal = self._propose(sections, applied)
        for name, number in numbers.items():
            self._coming[topic.topic_id, name] = (number, proposal)
        return numbers, proposal

    def _quiet(self, lifetime_of: LifetimeOf) -> dict[int, list[tuple[int, bytes]]]:
        """Return (number, name) of lite topics whose life is over, by parent topic."""
        now_ms = self._leader.proposer.now_ms()
        quiet: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        groups: dict[int, list[int]] = {}
        left = self._options.max_ended
        rows = self._rows.names.after(*self._looked_at)
        for topic_id, number, name in islice(rows, self._options.expiry_batch):
            self._looked_at = (topic_id, number)
            lifetime_ms = lifetime_of(topic_id)
            if lifetime_ms is None:
                continue
            row = self._machine.queues.get(topic_id, number)
            if row is None:
                continue
            if now_ms - row.last_store_time_ms < lifetime_ms:
                continue
            if topic_id not in groups:
                groups[topic_id] = list(self._machine.rows.heads.consumer_groups(topic_id))
            if not self._is_in_use(topic_id, number, name, row, groups[topic_id]):
                quiet[topic_id].append((number, name))
                left -= 1
                if not left:
                    break
        if next(self._rows.names.after(*self._looked_at), None) is None:
            self._looked_at = (0, 0)
        return quiet

    def _is_in_use(
        self, topic_id: int, number: int, name: bytes, row: QueueRow, groups: Sequence[int]
    ) -> bool:
        """Whether something of a lite topic is in flight or leased."""
        leader, tier = self._leader, self._machine.tier
        return (
            (topic_id, name) in self._leaving
            or leader.appends.is_sealed(topic_id, number)
            or leader.appends.next_offset(topic_id, number) != row.next_offset
            or any(one.in_flight for one in leader.sets.of_queue(topic_id, number))
            or any(
                self._machine.rows.leases.of_queue((group_id, topic_id, number))
                for group_id in groups
            )
            # Objects name it: it stays as long as it is there.
            or tier.commit_offset(topic_id, number) is not None
            or any((one.topic_id, one.queue) == (topic_id, number) for one in tier.dispatch)
        )

    def _drop(
        self, topic_id: int, ended: Sequence[tuple[int, bytes]], groups: Sequence[int]
    ) -> asyncio.Future[int]:
        """Propose the end of lite topics of one parent, (number, name) each."""
        by_home: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        queue_count = next(
            row.queue_count for key, row in self._applied.parents.items() if key[0] == topic_id
        )
        for number, name in ended:
            by_home[lite_home(number, queue_count)].append((number, name))
        sections = []
        for home, dropped in by_home.items():
            turn, count, _ = self._parent((topic_id, home))
            sections.append(
                LiteChange(
                    *(topic_id, home, turn, count - len(dropped), queue_count),
                    dropped=tuple(dropped),
                    consumer_group_ids=groups,
                )
            )
        appends, sets = self._leader.appends, self._leader.sets
        interests = self._leader.waiters.interests

        def applied() -> None:
            for number, name in ended:
                self._leaving.discard((topic_id, name))
                sets.held_queues.discard((topic_id, number))
                sets.forget_queue(topic_id, number)
                appends.opened(topic_id, number)
                # A broker that waits looks, learns that the number has ended, and asks for another.
                interests.tell_topic(topic_id, number)

        proposal = self._propose(sections, applied)
        for number, name in ended:
            self._leaving.add((topic_id, name))
            # Neither appends nor pops from here on: their entries would come behind this one.
            sets.held_queues.add((topic_id, number))
            appends.seal(topic_id, number)
        return proposal

    def _propose(
        self, sections: Sequence[LiteChange], when_applied: Callable[[], None]
    ) -> asyncio.Future[int]:
        """Propose a command; keep what it makes of the parents until it is applied.

        Raises:
            Refused: nothing was proposed.
        """
        keys = [(one.topic_id, one.home) for one in sections]

        def applied() -> None:
            when_applied()
            for key in keys:
                row, count = self._parents.pop(key)
                if count > 1:
                    self._parents[key] = (row, count - 1)

        payload = encode_lite_topics(self._leader.proposer.now_ms(), sections)
        proposal = self._leader.proposer.propose((payload,), applied)
        for key, one in zip(keys, sections, strict=True):
            row = LiteParentRow(one.next_turn, one.lite_count, one.queue_count)
            _, count = self._parents.get(key, (row, 0))
            self._parents[key] = (row, count + 1)
        return proposal


def home_of(name: bytes, queue_count: int) -> int:
    """Return the queue of the parent topic that the name of a lite topic chooses.

    Raises:
        UnicodeDecodeError: the name is not UTF-8.
    """
    return queue_of_hash(text_hash(name.decode()), queue_count)
