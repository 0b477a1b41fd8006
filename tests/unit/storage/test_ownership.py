"""Slots that a raft group owns (rule 17)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.rare import SlotGrant
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
