"""The election-safety checker against a known-bad subject, raftos 0.2.6, and against our core.

`make raftos` installs the subject into build/raftos. It is driven in process: its network is a
list, its files are in a temporary folder, its timers are fired by hand. The same story is told to
our `RawNode`. docs/adr/0001-own-raft-core.md quotes the outcome.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strata_raft import Campaign, Configuration, Receive, Role
from strata_raft.messages import VoteRequest, VoteResponse
from strata_sim.invariants.election_safety import ElectionSafety
from strata_sim.invariants.violation import Violation
from strata_sim.raft_member import RaftMember
from tests.parts.required import absent

SUBJECT = Path(__file__).parents[2] / "build" / "raftos"
PORTS = {"a": 1, "b": 2, "c": 3}


class JsonSerializer:
    """Takes the place of msgpack, which the subject pins to a version of 2016."""

    @staticmethod
    def pack(data: object) -> bytes:
        return json.dumps(data).encode()

    @staticmethod
    def unpack(data: bytes) -> Any:
        return json.loads(data)


class FakeServer:
    """The subject's server without sockets: it keeps what is sent."""

    def __init__(self, name: str) -> None:
        self.host, self.port = name, PORTS[name]
        self.loop = asyncio.get_running_loop()
        self.cluster = [(other, port) for other, port in PORTS.items() if other != name]
        self.cluster_count = len(PORTS)
        self.sent: list[dict[str, Any]] = []

    async def send(self, data: dict[str, Any], destination: object) -> None:
        self.sent.append(data)

    def broadcast(self, data: dict[str, Any]) -> None:
        self.sent.append(data)


@pytest.fixture
def raftos_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the subject's module of roles with its files below `tmp_path`."""
    if not (SUBJECT / "raftos").is_dir():
        absent("raftos is missing: run `make raftos`")
    monkeypatch.syspath_prepend(str(SUBJECT))
    monkeypatch.setitem(sys.modules, "msgpack", ModuleType("msgpack"))
    import raftos.conf  # type: ignore[import-not-found]
    import raftos.state  # type: ignore[import-not-found]

    raftos.conf.config.configure({"log_path": f"{tmp_path}/", "serializer": JsonSerializer})
    yield raftos.state
    raftos.state.State.leader = None
    for name in [name for name in sys.modules if name.split(".")[0] == "raftos"]:
        del sys.modules[name]


def start(raftos_state: Any, name: str) -> Any:
    state = raftos_state.State(FakeServer(name))
    state.start()
    return state


async def receive(state: Any, request: dict[str, Any], sender: str) -> dict[str, Any] | None:
    """Let a message arrive; return the answer."""
    before = len(state.server.sent)
    state.request_handler({**request, "sender": (sender, PORTS[sender])})
    await asyncio.sleep(0)
    answers: list[dict[str, Any]] = state.server.sent[before:]
    return answers[0] if answers else None


async def test_raftos_votes_twice_in_one_term(raftos_state: Any) -> None:
    """A raftos candidate whose election timed out forgets its own vote and gives another."""
    a, b = start(raftos_state, "a"), start(raftos_state, "b")
    checker = ElectionSafety()
    for candidate in (a, b):
        candidate.to_candidate()
        checker.vote_granted(candidate.storage.term, candidate.id, candidate.storage.voted_for)
    a.to_follower()  # what its election timer calls
    answer = await receive(a, b.server.sent[0], "b")
    a.stop()
    b.stop()
    assert answer is not None
    assert (answer["term"], answer["vote_granted"]) == (1, True)
    with pytest.raises(Violation) as violation:
        checker.vote_granted(answer["term"], a.id, b.id)
    print(violation.value)
    assert "a:1 voted twice in term 1: for a:1, then for b:2" in str(violation.value)


async def test_raftos_elects_two_leaders_in_one_term(raftos_state: Any) -> None:
    """A raftos follower that restarts forgets its vote; a delayed request makes a second leader."""
    a, b, c = (start(raftos_state, name) for name in PORTS)
    checker = ElectionSafety()
    for candidate in (a, b):
        candidate.to_candidate()
    request_a, request_b = a.server.sent[0], b.server.sent[0]
    answer = await receive(c, request_a, "a")
    assert answer is not None
    await receive(a, answer, "c")
    assert isinstance(a.state, raftos_state.Leader)
    checker.leader_elected(a.storage.term, a.id)
    c.stop()
    c = start(raftos_state, "c")
    answer = await receive(c, request_b, "b")
    assert answer is not None
    await receive(b, answer, "c")
    assert isinstance(b.state, raftos_state.Leader)
    for state in (a, b, c):
        state.stop()
    with pytest.raises(Violation) as violation:
        checker.leader_elected(b.storage.term, b.id)
    print(violation.value)
    assert "term 1 has leaders a:1 and b:2" in str(violation.value)


def members() -> dict[int, RaftMember]:
    configuration = Configuration(frozenset(PORTS.values()))
    return {id_: RaftMember(id_, configuration, lambda: 6) for id_ in PORTS.values()}


def become_candidate(member: RaftMember) -> list[VoteRequest]:
    """Campaign with a pre-vote from replica 3; return the vote requests."""
    member.step(Campaign())
    granted = VoteResponse(3, member.replica_id, term=1, granted=True, pre_vote=True)
    member.step(Receive(granted))
    assert member.node.role is Role.CANDIDATE
    return [message for message in member.sync() if isinstance(message, VoteRequest)]


def test_our_candidate_keeps_its_vote() -> None:
    """The same story with our core: after its timeout the candidate still refuses the other."""
    a, b = members()[1], members()[2]
    checker = ElectionSafety()
    become_candidate(a)
    checker.vote_granted(a.node.term, 1, 1)
    request = next(request for request in become_candidate(b) if request.target == 1)
    for _ in range(6):
        a.tick()
    answers = a.step(Receive(request))
    for answer in answers:
        if isinstance(answer, VoteResponse) and answer.granted and not answer.pre_vote:
            checker.vote_granted(answer.term, 1, answer.target)
    assert [answer for answer in answers if isinstance(answer, VoteResponse)] == [
        VoteResponse(1, 2, term=1, granted=False)
    ]


def test_our_follower_keeps_its_vote_over_a_restart() -> None:
    """The same story with our core: a vote that was sent was durable, so there is one leader."""
    cluster = members()
    a, b, c = cluster.values()
    checker = ElectionSafety()
    request_a = next(request for request in become_candidate(a) if request.target == 3)
    request_b = next(request for request in become_candidate(b) if request.target == 3)
    assert c.step(Receive(request_a)) == []  # the vote waits for the sync
    (answer,) = c.sync()
    a.step(Receive(answer))
    assert a.node.role is Role.LEADER
    checker.leader_elected(a.node.term, 1)
    c.crash()
    c.restart()
    (answer,) = c.step(Receive(request_b))
    assert answer == VoteResponse(3, 2, term=1, granted=False)
    b.step(Receive(answer))
    assert b.node.role is not Role.LEADER
