"""Classes of traffic (rule 15): small urgent entries pass others, of one raft group none passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.common import CommandKind
from strata_multiraft.base.ports import Envelope, TrafficClass
from strata_multiraft.peering.envelopes import size_bytes
from strata_multiraft.peering.peer_queue import PeerQueue
from strata_multiraft.peering.peering_options import TransportOptions
from strata_raft import Entry, EntryKind
from strata_raft.messages import AppendRequest, Heartbeat
from strata_storage.rows.lease_entries import is_lease_entry
from tests.unit.multiraft.memory_cluster import Cluster, three_nodes

Settled = Callable[[], Awaitable[None]]
SMALL = TransportOptions(
    max_control_bytes=2_000, max_lease_bytes=1_000, max_append_bytes=3_000, max_fetch_bytes=3_000
)


def append(raft_group: int, index: int, length: int = 1) -> Envelope:
    entry = Entry(1, index, EntryKind.NORMAL, (bytes(length),))
    return Envelope(raft_group, AppendRequest(1, 2, 1, index - 1, 1, (entry,), 0))


def index_of(envelope: Envelope) -> int:
    message = envelope.message
    assert isinstance(message, AppendRequest)
    return message.previous_index + 1


def test_acks_of_one_raft_group_pass_messages_of_another() -> None:
    """And what follows messages of its own raft group waits behind them."""
    queue = PeerQueue(TransportOptions())
    assert queue.offer([append(1, 1, 500), append(1, 2, 500)], TrafficClass.APPEND)
    assert queue.offer([append(2, 1), append(1, 3)], TrafficClass.LEASE)
    assert queue.offer([append(3, 1)], TrafficClass.FETCH)
    assert queue.offer([append(3, 2)], TrafficClass.APPEND)
    taken, _ = queue.take(1 << 20)
    order = [(each.raft_group, index_of(each)) for each in taken]
    assert order == [(2, 1), (1, 1), (1, 2), (1, 3), (3, 1), (3, 2)]
    assert not queue.has_any()
    assert queue.offer([append(1, 4)], TrafficClass.LEASE)
    assert queue.take(1 << 20, lowest=TrafficClass.LEASE)[0] == [append(1, 4)]


def test_a_full_class_refuses_no_other() -> None:
    """Messages fill their own budget; acks of other raft groups still go."""
    queue = PeerQueue(SMALL)
    assert queue.offer([append(1, 1, 2_900)], TrafficClass.APPEND)
    assert not queue.offer([append(1, 2, 500)], TrafficClass.APPEND)
    assert queue.offer([append(2, 1)], TrafficClass.LEASE)
    assert not queue.offer([append(1, 2)], TrafficClass.LEASE), "it would wait behind messages"
    assert queue.queued_bytes[TrafficClass.LEASE] == size_bytes(append(2, 1))
    assert len(queue.clear()) == 2
    assert queue.offer([append(1, 1)], TrafficClass.LEASE)
    assert queue.queued_bytes[TrafficClass.LEASE] == size_bytes(append(1, 1))


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from(TrafficClass), st.integers(1, 900)),
        st.tuples(st.sampled_from(TrafficClass), st.integers(1, 3_000)),
    ),
    max_size=60,
)


@given(steps=steps)
def test_of_one_raft_group_none_overtakes(steps: list[tuple[Any, ...]]) -> None:
    """Envelopes may be offered in any class, and taken in any pieces."""
    queue = PeerQueue(SMALL)
    offered: defaultdict[int, list[int]] = defaultdict(list)
    arrived: defaultdict[int, list[int]] = defaultdict(list)

    def take(lowest: TrafficClass, max_bytes: int) -> None:
        for envelope in queue.take(max_bytes, lowest=lowest)[0]:
            if not isinstance(envelope.message, Heartbeat):
                arrived[envelope.raft_group].append(index_of(envelope))

    for number, step in enumerate(steps, 1):
        if len(step) == 2:
            take(*step)
            continue
        raft_group, traffic, length = step
        if traffic is TrafficClass.CONTROL:
            queue.offer([Envelope(raft_group, Heartbeat(1, 2, 1, 0))], traffic)
        elif queue.offer([append(raft_group, number, length)], traffic):
            offered[raft_group].append(number)
    while queue.has_any():
        take(TrafficClass.FETCH, 1_000)
    assert arrived == offered
    assert set(queue.queued_bytes.values()) == {0}


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> Any:
    async for made in three_nodes(make_node, settled):
        yield made


async def test_each_request_has_the_class_of_its_entries(
    cluster: Cluster, settled: Settled
) -> None:
    """Acks, then messages, then acks in one turn: the last wait behind; old entries are fetches."""
    sent: list[tuple[TrafficClass, tuple[bytes, ...]]] = []
    outbox = cluster.nodes[1].multiraft._outbox
    transport = outbox._transport

    class Listening:
        def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
            for message in [each.message for each in envelopes if node_id == "3"]:
                if isinstance(message, AppendRequest) and message.entries:
                    payloads = tuple(b"".join(entry.payload) for entry in message.entries)
                    sent.append((traffic, payloads))
            return bool(transport.send(node_id, envelopes, traffic))

    outbox._transport = Listening()
    leader = cluster.replica(1)
    leader.is_urgent = lambda entry: b"".join(entry.payload).startswith(b"ack")
    for payload in (b"ack 1", b"message", b"ack 2"):
        leader.propose((payload,))
        cluster.nodes[1].multiraft.before_write()
        await settled()
    leader.propose((b"ack 3",))
    leader.propose((b"with a message",))
    await settled()
    assert sent == [
        (TrafficClass.LEASE, (b"ack 1",)),
        (TrafficClass.APPEND, (b"message",)),
        (TrafficClass.LEASE, (b"ack 2",)),
        (TrafficClass.APPEND, (b"ack 3", b"with a message")),
    ]
    sent.clear()
    append_request = AppendRequest(1, 3, 1, 1, 1, (Entry(1, 2, EntryKind.NORMAL, (b"m",)),), 1)
    ack_request = AppendRequest(1, 3, 1, 2, 1, (Entry(1, 3, EntryKind.NORMAL, (b"ack",)),), 1)
    outbox.add(leader, (append_request, ack_request))
    outbox.flush()
    assert sent == [(TrafficClass.APPEND, (b"m",)), (TrafficClass.APPEND, (b"ack",))]
    sent.clear()
    cluster.cut = {3}
    index = await leader.propose((b"while it was away",))
    cluster.nodes[1].log.has_recent = False
    cluster.cut = set()
    await cluster.tick(1, times=6)
    assert cluster.replica(3).applied_index == index
    assert sent[-1] == (TrafficClass.FETCH, (b"while it was away",))


def test_leases_are_urgent_and_messages_are_not() -> None:
    """By the first byte of the command; what raft itself writes is urgent too."""
    assert is_lease_entry(Entry(1, 1, EntryKind.NORMAL, (bytes((CommandKind.LEASES, 1)), b"rest")))
    assert not is_lease_entry(Entry(1, 1, EntryKind.NORMAL, (bytes((CommandKind.APPEND, 1)),)))
    assert is_lease_entry(Entry(1, 1, EntryKind.NO_OP, ()))


async def test_a_question_without_entries_overtakes_none(cluster: Cluster) -> None:
    """Where it came before the entries it would be refused, and all would be sent again."""
    outbox, leader = cluster.nodes[1].multiraft._outbox, cluster.replica(1)
    sent: list[tuple[TrafficClass, int]] = []

    class Listening:
        def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
            sent.extend((traffic, len(each.message.entries)) for each in envelopes)  # type: ignore[union-attr]
            return True

    outbox._transport = Listening()
    entries = (Entry(1, 2, EntryKind.NORMAL, (b"m",)),)
    leader.is_urgent = lambda entry: False
    outbox.add(
        leader, (AppendRequest(1, 3, 1, 1, 1, entries, 1), AppendRequest(1, 3, 1, 2, 1, (), 1))
    )
    outbox.flush()
    assert sent == [(TrafficClass.APPEND, 1), (TrafficClass.APPEND, 0)]
    sent.clear()
    outbox.add(leader, (AppendRequest(1, 3, 1, 2, 1, (), 1),))
    outbox.flush()
    assert sent[0][0] is not TrafficClass.CONTROL
