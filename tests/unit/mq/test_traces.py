"""Trace rows: what a LEASES command did to each message, and client names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.common import CommandError, LeasesSection, decode_leases, encode_leases
from strata_mq.leases.types import Lease, LeaseChange, LeaseState
from strata_mq.traces.traces import (
    MAX_CLIENT_ID_BYTES,
    ClientName,
    TraceEvent,
    TraceKind,
    block_of,
    decode_client_names,
    encode_client_names,
    short_client_id,
    trace_events,
    trace_values,
)

NOW_MS = 1_700_000_000_000
GROUP = 5


def lease(
    state: LeaseState, *, attempts: int = 1, holder: int = 0, visible_at_ms: int = 0
) -> Lease:
    return Lease(state, attempts, 16, 1, 9, visible_at_ms, NOW_MS, holder, 0, 0, False, 100)


def section(change: LeaseChange) -> LeasesSection:
    """Return a change as apply sees it."""
    _, (decoded,) = decode_leases(encode_leases(NOW_MS, [(GROUP, 7, 0, change)]))
    return decoded


def events(change: LeaseChange, offset: int, *, dead_letters: bool = False) -> list[TraceEvent]:
    """Return what the rows of a change tell of one message."""
    block = block_of(offset).to_bytes(7, "big")
    rows = dict(trace_values(section(change), NOW_MS, dead_letters=dead_letters))
    return trace_events(rows[block], offset) if block in rows else []


def test_a_delivery_names_its_holder_and_attempt() -> None:
    """The event tells who was given the message, the attempt, and until when it is invisible."""
    leased = lease(LeaseState.LEASED, attempts=2, holder=77, visible_at_ms=NOW_MS + 30_000)
    change = LeaseChange(0, 9, True, ((8, leased),))
    assert events(change, 8) == [
        TraceEvent(GROUP, TraceKind.DELIVERED, NOW_MS, 2, 77, NOW_MS + 30_000)
    ]
    assert events(change, 7) == []


def test_every_change_of_a_lease_is_told_apart() -> None:
    """Postponed, released, blocked, acked and dead-lettered are different events."""
    postponed = lease(LeaseState.LEASED, visible_at_ms=NOW_MS + 1)
    released = lease(LeaseState.WAITING, visible_at_ms=NOW_MS)
    blocked = lease(LeaseState.BLOCKED, attempts=0)
    puts = ((1, postponed), (2, released), (3, blocked))
    change = LeaseChange(0, 9, False, puts, (4,))
    kinds = [events(change, offset)[0].kind for offset in (1, 2, 3, 4)]
    assert kinds == [
        TraceKind.POSTPONED,
        TraceKind.RELEASED,
        TraceKind.BLOCKED,
        TraceKind.ACKED,
    ]
    (given_up,) = events(change, 4, dead_letters=True)
    assert given_up == TraceEvent(GROUP, TraceKind.DEAD_LETTERED, NOW_MS)


def test_equal_leases_of_a_block_share_one_item() -> None:
    """A pop of 32 messages, of different lengths too, costs one short row."""
    leased = lease(LeaseState.LEASED, holder=1)
    puts = tuple((offset, leased._replace(length=offset)) for offset in range(32))
    ((_, value),) = trace_values(
        section(LeaseChange(0, 32, True, puts)), NOW_MS, dead_letters=False
    )
    assert len(value) < 100


@given(
    st.dictionaries(
        st.integers(0, 2_000), st.sampled_from(list(LeaseState)), min_size=1, max_size=300
    ),
    st.sets(st.integers(0, 2_000), max_size=300),
)
def test_no_event_is_lost_or_made_up(puts: dict[int, LeaseState], deletes: set[int]) -> None:
    """Over all blocks: an event for each put and each deletion, none for any other offset."""
    leases = [(offset, lease(state, holder=3)) for offset, state in puts.items()]
    rows = dict(
        trace_values(
            section(LeaseChange(0, 0, False, leases, tuple(deletes))), NOW_MS, dead_letters=False
        )
    )
    for offset in range(2_001):
        value = rows.get(block_of(offset).to_bytes(7, "big"))
        found = [] if value is None else trace_events(value, offset)
        assert len(found) == (offset in puts) + (offset in deletes)
        assert (TraceEvent(GROUP, TraceKind.ACKED, NOW_MS) in found) == (offset in deletes)


def test_client_names_survive_encoding() -> None:
    """Ids in any script; too long ones are cut between characters."""
    names = [ClientName(1, "host@17@0@abc"), ClientName(2, "ü" * 200)]
    group_time_ms, decoded = decode_client_names(encode_client_names(NOW_MS, names))
    assert group_time_ms == NOW_MS
    assert decoded[0] == (1, b"host@17@0@abc")
    holder, text = decoded[1]
    assert (holder, text.decode()) == (2, "ü" * (MAX_CLIENT_ID_BYTES // 2))
    assert short_client_id("short") == b"short"


def test_damaged_client_names_are_refused() -> None:
    """Every cut of the command is an error, not a shorter list."""
    encoded = encode_client_names(NOW_MS, [ClientName(1, "a"), ClientName(2, "bc")])
    for length in range(len(encoded)):
        with pytest.raises(CommandError):
            decode_client_names(encoded[:length])
