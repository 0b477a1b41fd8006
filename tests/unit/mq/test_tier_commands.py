"""The tier's commands, rows and policies: golden bytes, round trips, refusal of other bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.common import CommandError, CommandKind, command_kind
from strata_mq.commands.tier import (
    LocalQueue,
    TierChangeCommand,
    decode_tier_change,
    decode_tier_dispatch,
    decode_tier_local,
    decode_tier_pause,
    encode_tier_change,
    encode_tier_dispatch,
    encode_tier_local,
    encode_tier_pause,
)
from strata_mq.layout.stored_properties import type_and_born_ms
from strata_mq.layout.tier_rows import (
    OffsetRange,
    decode_dispatch,
    decode_local_offset,
    encode_dispatch,
    encode_local_offset,
    parse_tier_local_key,
    tier_local_key,
)
from strata_mq.tier_policy import (
    DISABLED,
    TierLevel,
    TierPolicy,
    normalised_attributes,
    policy_of,
    stored_policy,
)

_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_RANGES = st.lists(st.builds(OffsetRange, _U32, _U32, _U64, _U64), max_size=5)


def test_bytes_are_those_of_the_layout() -> None:
    """Each command is written as docs/data-layout.md says."""
    dispatch = encode_tier_dispatch([OffsetRange(7, 1, 2, 9)])
    assert dispatch.hex() == ("1e01000000000001000000070000000100000000000000020000000000000009")
    assert encode_tier_change(TierChangeCommand(True, b"\xaa")).hex() == "1f010100aa"
    local = encode_tier_local([LocalQueue(7, 1, 5)])
    assert local.hex() == "200100000000000100000007000000010000000000000005"
    assert encode_tier_pause(paused=True).hex() == "210101"
    assert command_kind(dispatch) is CommandKind.TIER_DISPATCH


@given(_RANGES, st.booleans(), st.binary(max_size=20), st.booleans())
def test_commands_and_rows_come_back(
    ranges: list[OffsetRange], ends: bool, change: bytes, paused: bool
) -> None:
    """Decoding gives the values that were encoded."""
    assert decode_tier_dispatch(encode_tier_dispatch(ranges)) == ranges
    assert decode_dispatch(encode_dispatch(ranges)) == ranges
    command = TierChangeCommand(ends, change)
    assert decode_tier_change(encode_tier_change(command)) == command
    queues = [LocalQueue(each.topic_id, each.queue, each.end) for each in ranges]
    assert decode_tier_local(encode_tier_local(queues)) == queues
    assert decode_tier_pause(encode_tier_pause(paused=paused)) is paused


@given(_U32, _U32, _U32, _U64)
def test_a_local_offset_comes_back(raft_group: int, topic_id: int, queue: int, offset: int) -> None:
    """Key and value of the row are told apart again."""
    key = tier_local_key(raft_group, topic_id, queue)
    assert parse_tier_local_key(key) == (topic_id, queue)
    assert decode_local_offset(encode_local_offset(offset)) == offset


@pytest.mark.parametrize("cut", [1, 9])
def test_cut_commands_are_refused(cut: int) -> None:
    """A command without its end is an error, not a shorter one."""
    ranges = [OffsetRange(1, 2, 3, 4)]
    queues = [LocalQueue(1, 2, 3)]
    with pytest.raises(CommandError):
        decode_tier_dispatch(encode_tier_dispatch(ranges)[:-cut])
    with pytest.raises(CommandError):
        decode_tier_local(encode_tier_local(queues)[:-cut])


def test_a_topic_says_how_it_uses_the_tier() -> None:
    """The level has two names and any case; what is not said is None."""
    assert policy_of({}) == TierPolicy(None, None)
    assert policy_of({"tiered_storage_level": "force"}).level is TierLevel.FORCE
    assert policy_of({"tieredStorageLevel": "NOT_IN_MEM"}).level is TierLevel.NOT_IN_MEM
    assert policy_of({"local_retention_ms": "5"}) == TierPolicy(None, 5)


@pytest.mark.parametrize(
    "attributes", [{"tieredStorageLevel": "SOMETIMES"}, {"local_retention_ms": "-1"}]
)
def test_other_words_are_refused(attributes: dict[str, str]) -> None:
    """An operator who sets them is told; a stored row that has them uploads nothing."""
    with pytest.raises(ValueError, match=r"tiered_storage_level|local_retention_ms"):
        normalised_attributes(attributes)
    assert stored_policy(attributes) == DISABLED


def test_attributes_are_stored_under_one_name() -> None:
    """The other name is taken and not kept; the rest stays as it was."""
    given_ = {"tieredStorageLevel": "force", "team": "blue"}
    assert normalised_attributes(given_) == {"tiered_storage_level": "FORCE", "team": "blue"}
    assert normalised_attributes({"team": "blue"}) == {"team": "blue"}


def test_a_stored_message_says_its_type_and_birth() -> None:
    """Both stand in the system properties; what is missing is 0."""
    born = bytes((0x3A, 6, 0x08, 0x02, 0x10, 0xC0, 0x84, 0x3D))
    system = bytes((0x30, 3)) + born
    assert type_and_born_ms(bytes((0x1A, len(system))) + system) == (3, 2_001)
    assert type_and_born_ms(b"\x1a\x00") == (0, 0)
    with pytest.raises(ValueError, match="system properties"):
        type_and_born_ms(b"\x08\x01")
