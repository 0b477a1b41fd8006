"""A raft group under random faults: every run is a function of its seed.

Each turn does one random thing: time passes somewhere, a message arrives (late, twice, out of order
or never), a sync ends, a client proposes or reads, a replica crashes and loses unsynced data, the
network splits, the leadership or the membership changes, a log is compacted. The invariants see
every step. Then `quiesce` heals everything and lets the raft group settle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from strata_raft import (
    ChangeMembership,
    Configuration,
    Event,
    EventRefused,
    InstallSnapshot,
    Message,
    Propose,
    RaftOptions,
    Read,
    Receive,
    Role,
    SnapshotSent,
    StepDown,
    TransferLeadership,
)
from strata_raft.messages import VoteRequest, VoteResponse
from strata_sim.invariants.committed_never_lost import CommittedNeverLost
from strata_sim.invariants.election_safety import ElectionSafety
from strata_sim.invariants.leader_completeness import LeaderCompleteness
from strata_sim.invariants.log_matching import LogMatching
from strata_sim.invariants.reads_see_commits import ReadsSeeCommits
from strata_sim.invariants.violation import Violation
from strata_sim.raft_member import Outgoing, RaftMember


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per message (the first three), then relative weights of what a turn does.

    With these a partition lasts for some election timeouts.
    """

    loss: float = 0.05
    duplication: float = 0.05
    reordering: float = 0.2
    tick: float = 30
    delivery: float = 90
    sync: float = 40
    proposal: float = 10
    read: float = 4
    crash: float = 0.3
    disk_full: float = 0.2
    restart: float = 1
    partition: float = 0.3
    heal: float = 0.3
    transfer: float = 0.3
    step_down: float = 0.1
    abandon: float = 0.3
    membership: float = 1
    compaction: float = 1


class RaftCluster:
    """Members, the messages between them, and the checkers."""

    def __init__(
        self, seed: int, *, voters: int = 3, spares: int = 0, faults: Faults | None = None
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.proposed = 0
        self.reads_answered = 0
        self._options = RaftOptions(
            max_append_bytes=64,
            max_inflight_requests=4,
            max_inflight_bytes=256,
            tells_commit_at_once=seed % 2 == 0,
        )
        configuration = Configuration(frozenset(range(1, voters + 1)))
        self._log_matching = LogMatching()
        self.members = {
            replica_id: RaftMember(
                replica_id,
                # A spare one joins as a learner and learns the configuration from its leader.
                configuration if replica_id <= voters else Configuration(frozenset()),
                lambda: self.random.randint(6, 12),
                options=self._options,
                # Not before: a leader whose own term is not durable yet has told nobody, and may
                # lead that term again after a crash, with other entries.
                on_stored=self._log_matching.appended,
            )
            for replica_id in range(1, voters + spares + 1)
        }
        self._wire: list[Message] = []
        self._cut: set[tuple[int, int]] = set()
        self._installs: dict[int, InstallSnapshot] = {}
        self._contexts = 0
        self._led: set[tuple[int, int]] = set()
        self._known_commit = dict.fromkeys(self.members, 0)
        self._election_safety = ElectionSafety()
        self._leader_completeness = LeaderCompleteness()
        self._reads = ReadsSeeCommits()
        self.committed = CommittedNeverLost()

    def run(self, turns: int) -> None:
        """Do that many random things.

        Raises:
            Violation: an invariant does not hold; the text begins with the seed.
        """
        weights = [getattr(self.faults, action.__name__[1:]) for action in self._actions()]
        try:
            for action in self.random.choices(self._actions(), weights, k=turns):
                action()
        except AssertionError as violation:
            raise Violation(f"SEED={self.seed}: {violation}") from violation

    def quiesce(self, rounds: int = 400) -> None:
        """Heal everything, then let time pass until all agree on everything.

        Raises:
            Violation: they do not come to rest, or something committed is missing.
        """
        self._cut.clear()
        for member in self.members.values():
            if not member.is_up:
                member.restart()
                self._known_commit[member.replica_id] = 0
        self.faults = Faults(loss=0, duplication=0, reordering=0)
        for round_number in range(rounds):
            for replica_id, member in self.members.items():
                self._send(replica_id, member.tick())
                self._drain()
            if round_number % 50 == 49:
                self._proposal()
                self._drain()
            if round_number > 50 and self._is_at_rest():
                break
        else:
            raise Violation(f"SEED={self.seed}: no rest after {rounds} rounds: {self.describe()}")
        for replica_id in self._leader().node.configuration.replicas():
            self.committed.check_final(replica_id, self.members[replica_id].applied)

    def describe(self) -> str:
        """Return one line per replica."""
        return "; ".join(
            f"{replica_id}: {member.node.role.name} term {member.node.term} "
            f"commit {member.node.commit_index} last {member.node.last_index} "
            f"of {sorted(member.node.configuration.replicas())}"
            for replica_id, member in self.members.items()
        )

    # -- what can happen -------------------------------------------------------------------------

    def _actions(self) -> list[Callable[[], None]]:
        return [
            self._tick,
            self._delivery,
            self._sync,
            self._proposal,
            self._read,
            self._crash,
            self._disk_full,
            self._restart,
            self._partition,
            self._heal,
            self._transfer,
            self._step_down,
            self._abandon,
            self._membership,
            self._compaction,
        ]

    def _tick(self) -> None:
        member = self._any_member(lambda member: member.is_up)
        if member is not None:
            self._send(member.replica_id, member.tick())

    def _delivery(self) -> None:
        if not self._wire:
            return
        out_of_order = self.random.random() < self.faults.reordering
        message = self._wire.pop(self.random.randrange(len(self._wire)) if out_of_order else 0)
        if self.random.random() < self.faults.duplication:
            self._wire.append(message)
        member = self.members[message.target]
        if member.is_up and (message.source, message.target) not in self._cut:
            self._step(member, Receive(message))

    def _sync(self) -> None:
        member = self._any_member(lambda member: member.is_up and bool(member.pending))
        if member is not None:
            self._send(member.replica_id, member.sync())
            return
        if self._installs:
            self._install(self.random.choice(list(self._installs)))

    def _proposal(self) -> None:
        leader = self._any_member(self._leads)
        if leader is not None:
            self.proposed += 1
            payloads = tuple(
                (b"%d.%d" % (self.proposed, number),) for number in range(self.random.randint(1, 4))
            )
            self._step(leader, Propose(payloads))

    def _read(self) -> None:
        leader = self._any_member(self._leads)
        if leader is not None:
            self._contexts += 1
            self._reads.asked(self._contexts)
            self._step(leader, Read(self._contexts))

    def _crash(self) -> None:
        member = self._any_member(lambda member: member.is_up)
        if member is not None:
            member.crash(self.random.randint(0, len(member.pending)))
            self._installs.pop(member.replica_id, None)

    def _disk_full(self) -> None:
        member = self._any_member(lambda member: member.is_up and bool(member.pending))
        if member is not None:
            self._send(member.replica_id, member.lose_writes())

    def _restart(self) -> None:
        member = self._any_member(lambda member: not member.is_up)
        if member is not None:
            member.restart()
            self._known_commit[member.replica_id] = 0

    def _partition(self) -> None:
        """Cut some directions: symmetric halves, or single one-way links."""
        ids = list(self.members)
        if self.random.random() < 0.5:
            one_side = set(self.random.sample(ids, self.random.randint(1, len(ids) - 1)))
            self._cut = {(a, b) for a in ids for b in ids if (a in one_side) != (b in one_side)}
        else:
            self._cut.add((self.random.choice(ids), self.random.choice(ids)))

    def _heal(self) -> None:
        self._cut.clear()

    def _transfer(self) -> None:
        leader = self._any_member(self._leads)
        if leader is not None:
            self._step(leader, TransferLeadership(self.random.choice(list(self.members))))

    def _step_down(self) -> None:
        leader = self._any_member(self._leads)
        if leader is not None:
            self._step(leader, StepDown(self.random.choice(list(self.members))))

    def _abandon(self) -> None:
        """Let an install that has begun be given up."""
        member = self._any_member(lambda member: member.is_up and member.installing is not None)
        if member is not None:
            member.abandon_install()
            self._installs.pop(member.replica_id, None)
            self._known_commit[member.replica_id] = 0

    def _membership(self) -> None:
        leader = self._any_member(self._leads)
        if leader is None or len(self.members) < 4:
            return
        ids = list(self.members)
        self.random.shuffle(ids)
        voters = self.random.choice((1, 2, 3, len(ids)))
        self._step(
            leader, ChangeMembership(frozenset(ids[:voters]), frozenset(ids[voters : voters + 1]))
        )

    def _compaction(self) -> None:
        member = self._any_member(lambda member: member.is_up and bool(member.applied))
        if member is not None:
            member.compact()

    # -- doing it --------------------------------------------------------------------------------

    def _any_member(self, fits: Callable[[RaftMember], bool]) -> RaftMember | None:
        fitting = [member for member in self.members.values() if fits(member)]
        return self.random.choice(fitting) if fitting else None

    @staticmethod
    def _leads(member: RaftMember) -> bool:
        return member.is_up and member.node.role is Role.LEADER

    def _leader(self) -> RaftMember:
        return max(filter(self._leads, self.members.values()), key=lambda member: member.node.term)

    def _step(self, member: RaftMember, event: Event) -> None:
        try:
            outgoing = member.step(event)
        except EventRefused:
            return
        self._send(member.replica_id, outgoing)

    def _send(self, replica_id: int, outgoing: Outgoing) -> None:
        """Put messages on the wire and tell the invariants what the step led to."""
        for message in outgoing:
            if isinstance(message, VoteRequest) and not message.pre_vote:
                self._election_safety.vote_granted(message.term, replica_id, replica_id)
            if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
                self._election_safety.vote_granted(message.term, replica_id, message.target)
            if self.random.random() >= self.faults.loss:
                self._wire.append(message)
        self._observe(self.members[replica_id])

    def _observe(self, member: RaftMember) -> None:
        node, effects = member.node, member.last_effects
        assert effects is not None
        if effects.install is not None and member.installing is None:
            self._installs[member.replica_id] = effects.install
        for read in effects.reads:
            self.reads_answered += 1
            self._reads.answered(read.context, read.index)
        is_known = (node.term, member.replica_id) in self._led
        # A sole voter leads before its vote is durable; nobody hears of it until then.
        if node.role is Role.LEADER and member.is_term_durable() and not is_known:
            self._led.add((node.term, member.replica_id))
            self._election_safety.vote_granted(node.term, member.replica_id, member.replica_id)
            self._election_safety.leader_elected(node.term, member.replica_id)
            self._leader_completeness.leader_elected(member.replica_id, node.term, member.term_at)
        # A committed entry may be acknowledged before it is applied, or even synced, here.
        for index in range(self._known_commit[member.replica_id] + 1, effects.commit_index + 1):
            entry = member.entry_at(index)
            if entry is not None:
                self.committed.committed(member.replica_id, [entry])
                self._leader_completeness.committed(node.term, index, entry.term)
            self._reads.committed(index)
        self._known_commit[member.replica_id] = effects.commit_index

    def _install(self, replica_id: int) -> None:
        """Begin, finish or lose the transfer of a snapshot."""
        install = self._installs[replica_id]
        leader, member = self.members[install.leader_id], self.members[replica_id]
        source_has_it = leader.is_up and len(leader.applied) >= install.snapshot.index
        delivered = source_has_it and self.random.random() >= self.faults.loss
        if delivered and member.installing is None:
            self._send(replica_id, member.begin_install(install.snapshot))
            if member.installing is not None:
                return
        del self._installs[replica_id]
        if member.installing is not None:
            if delivered:
                self._send(replica_id, member.finish_install(install.leader_id, leader.applied))
            else:
                member.abandon_install()
                self._known_commit[replica_id] = 0
        if leader.is_up:
            self._step(leader, SnapshotSent(replica_id, delivered))

    def _drain(self) -> None:
        while self._wire or self._installs or any(m.pending for m in self.members.values()):
            self._sync()
            self._delivery()

    def _is_at_rest(self) -> bool:
        leaders = list(filter(self._leads, self.members.values()))
        if not leaders:
            return False
        leader = self._leader()
        configuration = leader.node.configuration
        return not configuration.is_joint() and all(
            self.members[replica_id].applied[-1:] == leader.applied[-1:]
            and self.members[replica_id].node.commit_index == leader.node.last_index
            for replica_id in configuration.replicas()
        )
