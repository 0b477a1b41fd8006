"""What a resting leader may sleep through."""

from __future__ import annotations

import pytest

from strata_multiraft.ticker import is_late_answer
from strata_raft import Message
from strata_raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    TimeoutNow,
    VoteRequest,
)


@pytest.mark.parametrize(
    ("message", "is_late"),
    [
        (HeartbeatResponse(2, 1, 5), True),
        (AppendResponse(2, 1, 5, index=9), True),
        (AppendResponse(2, 1, 5, index=9, rejected=True), False),
        (HeartbeatResponse(2, 1, 6), False),
        (AppendResponse(2, 1, 6, index=9), False),
        (Heartbeat(2, 1, 5, commit=9), False),
        (AppendRequest(2, 1, 5, 9, 5, (), 9), False),
        (VoteRequest(2, 1, 5, last_index=9, last_term=5), False),
        (TimeoutNow(2, 1, 5), False),
    ],
)
def test_only_answers_of_the_term_are_no_news(message: Message, is_late: bool) -> None:
    """Answers that agree in the present term wake nobody; whatever else comes does."""
    assert is_late_answer(message, term=5) is is_late
