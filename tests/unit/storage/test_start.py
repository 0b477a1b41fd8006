"""How long a storage node may take to start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from strata_multiraft import Replica
from strata_storage.base.replaying import until_led


class FakeNode:
    """A node whose log is replayed a bit in every turn, until it is done or stuck."""

    def __init__(self, last_index: int, stuck_at: int | None = None) -> None:
        self.replica = SimpleNamespace(applied_index=0, last_index=last_index)
        self.stuck_at = stuck_at
        self.turns = 0

    def replicas(self) -> Mapping[int, Replica]:
        return {1: cast(Replica, self.replica)}

    async def until_ready(self, raft_group: int) -> None:
        assert raft_group == 1
        self.turns += 1
        if self.replica.applied_index == self.replica.last_index:
            return
        if self.replica.applied_index != self.stuck_at:
            self.replica.applied_index += 1
        await asyncio.Event().wait()


async def test_a_long_replay_is_waited_for() -> None:
    """Every turn takes longer than the limit; each of them got on."""
    node = FakeNode(last_index=5)
    await until_led(node, 1, 0.01)
    assert node.turns == 6


async def test_a_replay_that_stands_still_is_given_up() -> None:
    """The start fails with a reason that names the raft group."""
    node = FakeNode(last_index=5, stuck_at=3)
    with pytest.raises(TimeoutError, match="raft group 1"):
        await until_led(node, 1, 0.01)
    assert node.replica.applied_index == 3
