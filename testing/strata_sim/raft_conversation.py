"""Runs a raft group by a script and records its messages: data for `tests/vectors/raft`.

A script is lines that begin with `> `; the lines after each record its effects. Time passes and
messages arrive only when the script says so.

    voters 1 2 3 [learners 4]   begin; election timeouts are 6 ticks for replica 1, 7 for 2, ...
    elect N                     let N win an election, without writing down how
    campaign N | tick N [COUNT]
    propose N TEXT... | read N CONTEXT | transfer N TARGET
    change N voters A B ... [learners C ...]
    sync N                      end the oldest sync of N
    deliver [FROM TO]           let every message under way arrive, or those of one direction
    settle                      sync and deliver until nobody has anything to say
    drop FROM TO                lose what is under way in that direction
    cut N | heal                drop everything from and to N from now on, or stop that
    crash N | restart N         crashing loses what was not synced
    full N                      the disk of N has no room for what is not synced
    compact N | unreachable N PEER
    status [N]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from strata_raft import (
    Campaign,
    ChangeMembership,
    Configuration,
    Effects,
    Entry,
    EntryKind,
    Event,
    EventRefused,
    Message,
    PeerUnreachable,
    Propose,
    RaftOptions,
    Read,
    Receive,
    Role,
    SnapshotSent,
    TransferLeadership,
)
from strata_raft.membership import decode_configuration
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from strata_sim.raft_member import Outgoing, RaftMember


class Conversation:
    """One raft group and what was said so far."""

    def __init__(self) -> None:
        self._members: dict[int, RaftMember] = {}
        self._wire: list[Message] = []
        self._cut: set[int] = set()
        self._lines: list[str] = []
        self._commits: dict[int, int] = {}

    def run(self, command: str) -> list[str]:
        """Run one line of a script; return what happened."""
        self._lines = []
        name, *arguments = command.split()
        try:
            self._COMMANDS[name](self, arguments)
        except EventRefused as refused:
            self._lines.append(f"refused: {refused}")
        return self._lines or ["-"]

    # -- commands --------------------------------------------------------------------------------

    def _voters(self, arguments: Sequence[str]) -> None:
        voters, learners = _ids_and_learners(arguments)
        configuration = Configuration(voters, learners)
        for replica_id in sorted(configuration.replicas()):
            self._members[replica_id] = RaftMember(
                replica_id,
                configuration,
                partial(int, 5 + replica_id),
                options=RaftOptions(max_inflight_requests=3, max_append_bytes=24),
            )
            self._commits[replica_id] = 0

    def _step(self, replica: str, event: Event) -> None:
        member = self._members[int(replica)]
        self._said(member, member.step(event))

    def _campaign(self, arguments: Sequence[str]) -> None:
        self._step(arguments[0], Campaign())

    def _elect(self, arguments: Sequence[str]) -> None:
        self._campaign(arguments)
        self._settle(())
        node = self._members[int(arguments[0])].node
        self._lines = [f"{node.replica_id} is {_role(node.role)} in term {node.term}"]

    def _tick(self, arguments: Sequence[str]) -> None:
        member = self._members[int(arguments[0])]
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            self._said(member, member.tick())

    def _propose(self, arguments: Sequence[str]) -> None:
        payloads = tuple((text.encode(),) for text in arguments[1:])
        self._step(arguments[0], Propose(payloads))

    def _read(self, arguments: Sequence[str]) -> None:
        self._step(arguments[0], Read(int(arguments[1])))

    def _transfer(self, arguments: Sequence[str]) -> None:
        self._step(arguments[0], TransferLeadership(int(arguments[1])))

    def _change(self, arguments: Sequence[str]) -> None:
        voters, learners = _ids_and_learners(arguments[2:])
        for replica_id in sorted((voters | learners) - self._members.keys()):
            self._members[replica_id] = RaftMember(
                replica_id, Configuration(frozenset()), partial(int, 5 + replica_id)
            )
            self._commits[replica_id] = 0
        self._step(arguments[0], ChangeMembership(voters, learners))

    def _sync(self, arguments: Sequence[str]) -> None:
        member = self._members[int(arguments[0])]
        if not member.pending:
            raise EventRefused("nothing to sync")
        self._said(member, member.sync())

    def _deliver(self, arguments: Sequence[str]) -> None:
        wire, self._wire = self._wire, []
        for message in wire:
            if arguments and [str(message.source), str(message.target)] != list(arguments):
                self._wire.append(message)
                continue
            member = self._members[message.target]
            if member.is_up:
                self._said(member, member.step(Receive(message)))

    def _settle(self, arguments: Sequence[str]) -> None:
        while self._wire or any(member.pending for member in self._members.values()):
            for member in self._members.values():
                while member.pending:
                    self._said(member, member.sync())
            self._deliver(())

    def _drop(self, arguments: Sequence[str]) -> None:
        source, target = map(int, arguments)
        self._wire = [m for m in self._wire if (m.source, m.target) != (source, target)]

    def _cut_off(self, arguments: Sequence[str]) -> None:
        self._cut.add(int(arguments[0]))
        self._wire = [m for m in self._wire if not self._cut & {m.source, m.target}]

    def _heal(self, arguments: Sequence[str]) -> None:
        self._cut.clear()

    def _crash(self, arguments: Sequence[str]) -> None:
        self._members[int(arguments[0])].crash()

    def _restart(self, arguments: Sequence[str]) -> None:
        self._members[int(arguments[0])].restart()

    def _full(self, arguments: Sequence[str]) -> None:
        member = self._members[int(arguments[0])]
        self._said(member, member.lose_writes())

    def _compact(self, arguments: Sequence[str]) -> None:
        self._members[int(arguments[0])].compact()

    def _unreachable(self, arguments: Sequence[str]) -> None:
        self._step(arguments[0], PeerUnreachable(int(arguments[1])))

    def _status(self, arguments: Sequence[str]) -> None:
        for replica_id, member in self._members.items():
            if arguments and str(replica_id) not in arguments:
                continue
            node = member.node
            applied = " ".join(map(_entry, member.applied))
            self._lines.append(
                f"{replica_id} is {_role(node.role)} in term {node.term}, commit "
                f"{node.commit_index}, last {node.last_index}, applied [{applied}]"
            )

    _COMMANDS: ClassVar[dict[str, Callable[[Conversation, Sequence[str]], None]]] = {
        "voters": _voters,
        "elect": _elect,
        "campaign": _campaign,
        "tick": _tick,
        "propose": _propose,
        "read": _read,
        "transfer": _transfer,
        "change": _change,
        "sync": _sync,
        "deliver": _deliver,
        "settle": _settle,
        "drop": _drop,
        "cut": _cut_off,
        "heal": _heal,
        "crash": _crash,
        "restart": _restart,
        "full": _full,
        "compact": _compact,
        "unreachable": _unreachable,
        "status": _status,
    }

    # -- writing down ----------------------------------------------------------------------------

    def _said(self, member: RaftMember, outgoing: Outgoing) -> None:
        effects = member.last_effects
        assert effects is not None
        self._note(member.replica_id, effects)
        for message in outgoing:
            passes = not self._cut & {message.source, message.target}
            self._lines.append(_message(message) + ("" if passes else "  (lost)"))
            if passes:
                self._wire.append(message)
        if effects.install is not None:
            leader = self._members[effects.install.leader_id]
            snapshot = effects.install.snapshot
            self._lines.append(f"{member.replica_id} installs snapshot {snapshot.index}")
            outgoing = member.begin_install(snapshot)
            if member.installing is not None:
                outgoing += member.finish_install(leader.replica_id, leader.applied)
            self._said(member, outgoing)
            self._said(leader, leader.step(SnapshotSent(member.replica_id, delivered=True)))

    def _note(self, replica_id: int, effects: Effects) -> None:
        lines = self._lines
        if effects.role_change is not None:
            change = effects.role_change
            leader = f", leader {change.leader_id}" if change.leader_id else ""
            lines.append(f"{replica_id} is {_role(change.role)} in term {change.term}{leader}")
        if effects.hard_state is not None:
            state = effects.hard_state
            lines.append(f"{replica_id} writes term {state.term} vote {state.vote}")
        if effects.entries:
            lines.append(f"{replica_id} writes {' '.join(map(_entry, effects.entries))}")
        if effects.commit_index > self._commits[replica_id]:
            lines.append(f"{replica_id} commits {effects.commit_index}")
        self._commits[replica_id] = effects.commit_index
        for read in effects.reads:
            lines.append(f"{replica_id} may serve read {read.context} at {read.index}")


def _ids_and_learners(words: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    split = words.index("learners") if "learners" in words else len(words)
    return frozenset(map(int, words[:split])), frozenset(map(int, words[split + 1 :]))


def _role(role: Role) -> str:
    return role.name.lower().replace("_", "-")


def _entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NO_OP:
            text = "no-op"
        case EntryKind.CONFIGURATION:
            text = _configuration(decode_configuration(entry.payload))
        case EntryKind.NORMAL:
            text = b"".join(entry.payload).decode()
    return f"{entry.index}/{entry.term}:{text}"


def _configuration(configuration: Configuration) -> str:
    text = ",".join(map(str, sorted(configuration.voters)))
    if configuration.learners:
        text += "+learners:" + ",".join(map(str, sorted(configuration.learners)))
    if configuration.outgoing:
        text += "&" + ",".join(map(str, sorted(configuration.outgoing)))
    return f"({text})"


def _message(message: Message) -> str:
    return f"  {message.source} -> {message.target} term {message.term}: {_content(message)}"


def _content(message: Message) -> str:
    match message:
        case VoteRequest():
            kind = "pre-vote?" if message.pre_vote else "vote?"
            transfer = " by transfer" if message.transfer else ""
            return f"{kind} my log ends {message.last_index}/{message.last_term}{transfer}"
        case VoteResponse():
            kind = "pre-vote" if message.pre_vote else "vote"
            return f"{kind} {'yes' if message.granted else 'no'}"
        case AppendRequest():
            entries = " ".join(map(_entry, message.entries)) or "nothing"
            after = f"{message.previous_index}/{message.previous_term}"
            return f"append after {after} {entries}, commit {message.commit}"
        case AppendResponse() if message.rejected:
            hint = f"{message.hint_index}/{message.hint_term}"
            return f"refused after {message.index}, try {hint}"
        case AppendResponse():
            return f"have {message.index}"
        case Heartbeat():
            return f"heartbeat commit {message.commit} round {message.context}"
        case HeartbeatResponse():
            return f"heard round {message.context}"
        case SnapshotRequest():
            return f"snapshot {message.snapshot.index}/{message.snapshot.term}"
        case TimeoutNow():
            return "campaign now"
