"""`strata slot move` waits for slots that are on their way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.commands.slot import _move

REQUEST = admin_pb2.MoveSlotsRequest(first_slot=7, slot_count=2, to_raft_group=3)
NO_LEADER = CallFailed("raft group 3 has no leader", grpc.StatusCode.UNAVAILABLE)


class Broker:
    """Answers one call after another as it was told."""

    timeout_s = 30.0

    def __init__(self, *answers: int | CallFailed) -> None:
        self.admin = SimpleNamespace(MoveSlots=None)
        self.answers = list(answers)

    def call(self, method: Callable[..., Any], request: admin_pb2.MoveSlotsRequest) -> Any:
        assert request == REQUEST
        answer = self.answers.pop(0)
        if isinstance(answer, CallFailed):
            raise answer
        return admin_pb2.MoveSlotsResponse(left=answer)


def client(*answers: int | CallFailed) -> AdminClient:
    return cast(AdminClient, Broker(*answers))


def test_a_raft_group_may_be_without_a_leader_for_a_moment() -> None:
    """The command asks again, as for slots that are left."""
    assert _move(client(NO_LEADER, 2, NO_LEADER, 0), REQUEST, wait=True) == 0


def test_a_refusal_is_no_reason_to_wait() -> None:
    """Nor is it with `--no-wait`."""
    refusal = CallFailed("no such slots", grpc.StatusCode.INVALID_ARGUMENT)
    for failure, wait in ((refusal, True), (NO_LEADER, False)):
        with pytest.raises(CallFailed) as caught:
            _move(client(failure, 0), REQUEST, wait=wait)
        assert caught.value is failure


def test_the_time_limit_ends_it() -> None:
    """The last failure is told."""
    broker = client(NO_LEADER)
    broker.timeout_s = 0.0
    with pytest.raises(CallFailed, match="no leader"):
        _move(broker, REQUEST, wait=True)
