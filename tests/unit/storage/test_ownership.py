"""Slots that a raft group owns (rule 17)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.rare import OwnCommand, SlotGrant
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.rows.ownership import OwnedSlots

GRANTS = st.lists(
    st.builds(SlotGrant, st.integers(0, 4_000), st.integers(1, 96), st.booleans()), max_size=20
)


@given(GRANTS)
def test_runs_say_exactly_which_slots_are_owned(grants: list[SlotGrant]) -> None:
    """Grants and revokes in any order; runs give the same set back."""
    model: set[int] = set()
    owned = OwnedSlots()
    for grant in grants:
        owned.change([grant])
        slots = range(grant.first_slot, grant.first_slot + grant.slot_count)
        model = model | set(slots) if grant.granted else model - set(slots)
    assert {slot for first, count in owned.runs() for slot in range(first, first + count)} == model
    again = OwnedSlots(owned.runs())
    assert all(again.owns(slot, 0) == (slot in model) for slot in range(4_096))


def test_queues_of_a_topic_wrap_around_the_slots() -> None:
    """Slot = (base + queue) mod 4096; the answer follows a change."""
    owned = OwnedSlots([(0, 2), (4_094, 1)])
    assert list(owned.queues(4_094, 5)) == [0, 2, 3]
    owned.change([SlotGrant(4_095, 1, True)])
    assert list(owned.queues(4_094, 5)) == [0, 1, 2, 3]


async def test_slots_are_given_up_when_that_is_applied_however_many_reads_wait() -> None:
    """Appends are let in again after the return: one behind the change would be nobody's."""
    overloaded = Refused(pb.OUTCOME_OVERLOADED, "too many reads wait")
    waits: list[Refused | None] = [overloaded, overloaded, None]
    proposed: list[bytes] = []

    def propose(payload: tuple[bytes, ...]) -> asyncio.Future[int]:
        proposed.extend(payload)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return future

    async def barrier() -> None:
        refused = waits.pop(0)
        if refused is not None:
            raise refused

    leader = SimpleNamespace(proposer=SimpleNamespace(propose=propose))
    engine = SimpleNamespace(
        machine=SimpleNamespace(ownership=SimpleNamespace(revision=0)),
        leading=lambda: leader,
        barrier=barrier,
    )
    await GroupEngine.own(cast(GroupEngine, engine), OwnCommand([SlotGrant(0, 8, False)]))
    assert len(proposed) == 1
    assert waits == []
