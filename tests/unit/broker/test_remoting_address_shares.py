"""Bytes of remoting connections: one address with many of them leaves room for others."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import all_owners_of
from strata_broker.remoting.request_bytes import RequestBytes
from strata_broker.remoting.unfinished_frames import UnfinishedFrames
from strata_broker.remoting.unread_answers import UnreadAnswers
from strata_mq.requests import RequestError
from strata_runtime.metrics import Metrics


def test_an_address_holds_a_share_of_the_unread_answers() -> None:
    """Clients of one address that read nothing do not keep others from their answers."""
    config = RemotingSection(
        max_unread_bytes=400_000,
        max_unread_bytes_per_connection=100_000,
        max_unread_bytes_per_address=300_000,
    )
    unread = UnreadAnswers(config, Metrics.disabled())
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(unread.holding(f"10.0.0.1:{number}", 500_000))
        with pytest.raises(RequestError, match="max_unread_bytes_per_address"):
            stack.enter_context(unread.holding("10.0.0.1:9", 100_000))
        stack.enter_context(unread.holding("[::1]:9", 100_000))
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(unread.holding(f"10.0.0.1:{number}", 500_000))


def test_an_address_holds_a_share_of_the_requests_under_way() -> None:
    """Its clients may choose any ids; all together have a limit, too."""
    config = RemotingSection(
        max_request_bytes=400_000,
        max_request_bytes_per_client=100_000,
        max_request_bytes_per_address=300_000,
    )
    under_way = RequestBytes(config, Metrics.disabled())
    for _ in range(2):
        with ExitStack() as stack:
            for number in range(3):
                owners = all_owners_of(f"client-{number}", f"10.0.0.1:{number}")
                stack.enter_context(under_way.holding(owners, 100_000))
            with pytest.raises(RequestError, match="max_request_bytes_per_address"):
                stack.enter_context(under_way.holding(all_owners_of("c", "10.0.0.1:9"), 1))
            stack.enter_context(under_way.holding(all_owners_of("c", "10.0.0.2:1"), 100_000))
            with pytest.raises(RequestError, match=r"max_request_bytes\)"):
                stack.enter_context(under_way.holding(all_owners_of("d", "10.0.0.3:1"), 1))


def test_an_address_holds_a_share_of_the_unfinished_frames() -> None:
    """A connection of another address is not ended for the frames of this one."""
    config = RemotingSection(max_unfinished_bytes=4_096, max_unfinished_bytes_per_address=3_072)
    frames = UnfinishedFrames(config, Metrics.disabled())
    assert [frames.refused(f"10.0.0.1:{number}", 1_024) for number in range(3)] == [""] * 3
    assert frames.refused("10.0.0.1:4", 1) == "remoting.max_unfinished_bytes_per_address"
    assert frames.refused("10.0.0.2:1", 1_024) == ""
    assert frames.refused("10.0.0.2:1", 1) == "remoting.max_unfinished_bytes"
    frames.give_back("10.0.0.1:0", 1_024)
    assert frames.refused("10.0.0.1:4", 1_024) == ""
