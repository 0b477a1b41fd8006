"""HeartbeatSender between two nodes, and the comparison of clocks, with time given by the test."""

from __future__ import annotations

import pytest

from strata.raft.v1 import raft_pb2
from strata_multiraft.peering.heartbeats import HeartbeatNews, PeerHeartbeats, skew_ms

OWN_BOOT, PEER_BOOT = 7, 9
MAX_UNCONFIRMED = 6
NOON_MS = 1_000_000


def receive(
    heartbeats: PeerHeartbeats,
    number: int,
    *,
    acknowledged: int = 0,
    boot: int = OWN_BOOT,
    wall_ms: int = 0,
) -> HeartbeatNews:
    """Let a beat of the peer arrive, whose clock is `wall_ms` ahead."""
    beat = raft_pb2.Beat(
        number=number,
        acknowledged_number=acknowledged,
        acknowledged_boot_id=boot,
        wall_ms=NOON_MS + wall_ms,
    )
    return heartbeats.received(beat, OWN_BOOT, NOON_MS)


def send(heartbeats: PeerHeartbeats, count: int = 1) -> None:
    """Let that many of our heartbeats leave."""
    for _ in range(count):
        heartbeats.next_heartbeat(NOON_MS)


@pytest.fixture
def heartbeats() -> PeerHeartbeats:
    """A peer whose first frame has come."""
    heartbeats = PeerHeartbeats(MAX_UNCONFIRMED)
    assert not heartbeats.life(PEER_BOOT)
    return heartbeats


def test_a_beat_acknowledges_the_peers_last_one(heartbeats: PeerHeartbeats) -> None:
    """A sent beat says which beat of which life arrived last."""
    receive(heartbeats, 41)
    beat = heartbeats.next_heartbeat(1234)
    assert (beat.number, beat.wall_ms) == (1, 1234)
    assert (beat.acknowledged_number, beat.acknowledged_boot_id) == (41, PEER_BOOT)


def test_arrival_alone_is_no_support(heartbeats: PeerHeartbeats) -> None:
    """A peer that hears nothing of us has no support, however many heartbeats come (rule 13)."""
    for number in range(1, 20):
        send(heartbeats)
        assert receive(heartbeats, number) == HeartbeatNews(fresh=True)
    assert not heartbeats.supported


def test_support_needs_young_beats_acknowledged(heartbeats: PeerHeartbeats) -> None:
    """Support begins with an acknowledgement and ends when the newest one is too old."""
    send(heartbeats)
    assert receive(heartbeats, 1, acknowledged=1) == HeartbeatNews(fresh=True, regained=True)
    # It goes on beating, and acknowledges nothing newer: our direction is cut.
    for number in range(2, 2 + MAX_UNCONFIRMED):
        send(heartbeats)
        receive(heartbeats, number, acknowledged=1)
        assert not heartbeats.lose()
    send(heartbeats)
    assert heartbeats.lose()
    assert not heartbeats.lose(), "the loss is told once"
    assert not receive(heartbeats, 20, acknowledged=1).regained
    assert receive(heartbeats, 21, acknowledged=8).regained


def test_a_node_that_stood_still_judges_by_its_own_pace(heartbeats: PeerHeartbeats) -> None:
    """However long nothing was sent, silence counts only from heartbeats that left (rule 14)."""
    send(heartbeats)
    receive(heartbeats, 1, acknowledged=1)
    assert not heartbeats.lose()
    send(heartbeats)
    assert not heartbeats.lose()


def test_acknowledgements_of_nothing_sent_count_for_nothing(heartbeats: PeerHeartbeats) -> None:
    """A peer cannot acknowledge the future, nor what was sent to it before our restart."""
    send(heartbeats)
    assert not receive(heartbeats, 1, acknowledged=1, boot=OWN_BOOT + 1).regained
    assert receive(heartbeats, 2, acknowledged=1_000).regained
    assert heartbeats.confirmed_number == 1


def test_overtaken_and_repeated_beats_count_for_nothing(heartbeats: PeerHeartbeats) -> None:
    """Only a beat newer than all before is fresh."""
    send(heartbeats)
    assert receive(heartbeats, 5).fresh
    assert receive(heartbeats, 5, acknowledged=1) == HeartbeatNews()
    assert receive(heartbeats, 4, acknowledged=1) == HeartbeatNews()
    assert not heartbeats.supported


def test_a_new_boot_id_is_another_life(heartbeats: PeerHeartbeats) -> None:
    """A restarted peer begins to count anew and has no support until it acknowledges."""
    send(heartbeats)
    assert receive(heartbeats, 50, acknowledged=1).regained
    assert not heartbeats.life(PEER_BOOT)
    assert heartbeats.life(PEER_BOOT + 1)
    assert not heartbeats.supported
    assert receive(heartbeats, 1) == HeartbeatNews(fresh=True)
    send(heartbeats, 9)
    assert not heartbeats.lose(), "it was lost with its life"


def test_a_late_beat_does_not_make_the_peers_clock_late(heartbeats: PeerHeartbeats) -> None:
    """The heartbeat of the last few that waited least tells the peer's clock."""
    assert heartbeats.offset_ms() is None
    for number, wall_ms in enumerate([3_000, 2_400, 2_990], 1):
        receive(heartbeats, number, wall_ms=wall_ms)
    assert heartbeats.offset_ms() == 3_000
    for number in range(4, 12):
        receive(heartbeats, number, wall_ms=-20)
    assert heartbeats.offset_ms() == -20, "the clock was set"


@pytest.mark.parametrize(
    ("offsets_ms", "skew"),
    [
        ([], 0),
        ([400], 0),  # one against one: nobody knows
        ([400, 410], -400),  # two against this one
        ([400, 3], -3),
        ([-3_000, 0], 0),
        ([-500, -500, -480, 20], 480),
        ([1_000, 1_000, 0], 0),
    ],
)
def test_skew_is_measured_against_the_median_of_all(offsets_ms: list[int], skew: int) -> None:
    """This node is off when more than half of all nodes are elsewhere."""
    assert skew_ms(offsets_ms) == skew


def test_a_peer_that_was_forgotten_gets_numbers_that_it_has_not_seen() -> None:
    """It may remember the old ones; that it does is no proof that it hears us now."""
    heartbeats = PeerHeartbeats(MAX_UNCONFIRMED, 70)
    assert not heartbeats.life(PEER_BOOT)
    assert heartbeats.next_heartbeat(NOON_MS).number == 71
    assert receive(heartbeats, 1, acknowledged=70) == HeartbeatNews(fresh=True)
    assert receive(heartbeats, 2, acknowledged=71) == HeartbeatNews(fresh=True, regained=True)
