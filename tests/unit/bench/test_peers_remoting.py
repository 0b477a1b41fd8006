"""Frames and texts of RocketMQ's remoting protocol."""

from __future__ import annotations

import pytest

from bench.peers import remoting
from bench.peers.errors import PeerError


def test_a_frame_has_its_lengths_header_and_body() -> None:
    """The first length counts what follows it, the second the header."""
    frame = remoting.encode(17, {"topic": "t"}, b"body")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, body = remoting.decode(frame[4:])
    assert (header["code"], header["extFields"], body) == (17, {"topic": "t"}, b"body")


def test_masters_of_a_cluster_whose_description_has_bare_numbers() -> None:
    """A broker with the number 0 is a master; -1 is a DLedger broker before its election."""
    text = (
        '{"brokerAddrTable":{"b":{"brokerAddrs":{0:"127.0.0.1:20011",2:"127.0.0.1:20021"},'
        '"brokerName":"b"},"a":{"brokerAddrs":{0:"127.0.0.1:10911"}},'
        '"c":{"brokerAddrs":{-1:"127.0.0.1:30911"}}},"clusterAddrTable":{"bench":["a","b","c"]}}'
    )
    assert remoting.masters_in(text) == ["127.0.0.1:10911", "127.0.0.1:20011"]


@pytest.mark.parametrize("text", ["", "{}", "no"])
def test_a_description_that_is_something_else(text: str) -> None:
    """It is an error of the system, which does not end a run."""
    with pytest.raises(PeerError, match="cannot be read"):
        remoting.masters_in(text)
