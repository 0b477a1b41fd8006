"""Common parts of all processes of a cluster."""

from __future__ import annotations

from strata_angelia.tcp_channel import TcpChannel
from strata_cli.processes.cluster import open_peer_channel


def test_a_peer_that_does_not_answer_is_given_up_after_a_second() -> None:
    """Before an election timeout is over: a node behind a silent network delays nobody longer."""
    channel = open_peer_channel("127.0.0.1:1")
    assert isinstance(channel, TcpChannel)
    assert channel._options.connect_timeout_s == 1.0
