"""Commands and rows: golden bytes, round trips, refusal of other bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.commands.common import (
    LEASE_ROW_BYTES,
    CommandError,
    CommandKind,
    Duplicate,
    PartResolution,
    command_kind,
    cut_change,
    decode_append,
    decode_lease,
    decode_leases,
    decode_resolution,
    encode_append,
    encode_lease,
    encode_leases,
    section_bytes,
)
from strata_mq.commands.rare import (
    DropCommand,
    DropKind,
    EpochCommand,
    LostCommand,
    NextOffset,
    OwnCommand,
    QueueGrant,
    QueuePlace,
    RehashCommand,
    SlotGrant,
    TrimCommand,
    TrimmedQueue,
    decode_dead_letter,
    decode_drop,
    decode_lost,
    decode_open,
    decode_own,
    decode_rehash,
    decode_seal,
    decode_trim,
    encode_dead_letter,
    encode_drop,
    encode_lost,
    encode_open,
    encode_own,
    encode_rehash,
    encode_seal,
    encode_trim,
)
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import NO_QUEUE, PendingKey, PendingRef, PinRun
from strata_mq.leases.queue_leases import Lease, LeaseChange, LeaseState

STORE_TIME_MS = 1_795_257_925_589
RESOLUTION = [
    PartResolution(3, 100),
    PartResolution(4, 7, 1, (Duplicate(1, 4, 2), Duplicate(2, 3, 99))),
    PartResolution(0, 0, 11),
]
PENDING_RESOLUTION = [
    PartResolution(3, 100, 1, (Duplicate(0, 0, 0, PendingRef(9, 4)),)),
    PartResolution(NO_QUEUE, 5, 1, (Duplicate(1, 0, 0, PendingRef(0, 5)),), PartKind.DELAYED),
    PartResolution(0, 0, 11, (), PartKind.HALF),
]
LEASE = Lease(LeaseState.LEASED, 2, 17, 3, 5, STORE_TIME_MS, 1, 77, 88, 99, False, 1024)
PIN_TRIM = TrimCommand(
    55,
    STORE_TIME_MS,
    [TrimmedQueue(7, 3, 900)],
    [PinRun(PendingRef(3, 0), PendingRef(5, 2)), PinRun(PendingRef(9, 4), PendingRef(9, 5))],
    [PendingKey(STORE_TIME_MS, 4, 1)],
)
CHANGE = LeaseChange(1, 12, True, [(10, LEASE), (11, LEASE)], [9])
OWN = OwnCommand(
    [SlotGrant(0, 2048, True), SlotGrant(4095, 1, False)],
    [
        QueueGrant(7, 3, QueuePlace.HERE),
        QueueGrant(7, 4, QueuePlace.ELSEWHERE),
        QueueGrant(2**32 - 1, 0, QueuePlace.BY_SLOT),
    ],
    2**40,
)

words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)
shorts = st.integers(0, 2**16 - 1)
leases = st.builds(
    Lease,
    st.sampled_from(LeaseState),
    shorts,
    shorts,
    words,
    words,
    longs,
    longs,
    longs,
    longs,
    longs,
    st.booleans(),
    words,
    shorts,
)
changes = st.builds(
    LeaseChange,
    words,
    longs,
    st.booleans(),
    st.lists(st.tuples(longs, leases), max_size=3),
    st.lists(longs, max_size=3),
    st.booleans(),
)
queues = st.integers(0, NO_QUEUE - 1)
duplicates = st.builds(Duplicate, words, queues, longs) | st.builds(
    Duplicate, words, st.just(0), st.just(0), st.builds(PendingRef, longs, words)
)
resolutions = st.lists(
    st.builds(
        PartResolution,
        words,
        longs,
        st.sampled_from((1, 3, 11)),
        st.lists(duplicates, max_size=3).map(tuple),
        st.sampled_from(PartKind),
    ),
    max_size=4,
)


def test_golden_bytes(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """The layout of docs/data-layout.md section 4, byte for byte."""
    append = encode_append(STORE_TIME_MS, 0xB0B0, 5, RESOLUTION)
    section = encode_leases(STORE_TIME_MS, [(1, 2, 3, CHANGE)])
    golden(
        "commands.txt",
        {
            "append": append,
            "append of pending messages": encode_append(
                STORE_TIME_MS, 0xB0B0, 6, PENDING_RESOLUTION
            ),
            "leases": section,
            "dead letter": encode_dead_letter(section, append),
            "own": encode_own(OWN),
            "seal": encode_seal(EpochCommand(7, 3, 1, 1000, 2)),
            "open": encode_open(EpochCommand(7, 3, 2, 1000, 1)),
            "trim": encode_trim(TrimCommand(55, STORE_TIME_MS, [TrimmedQueue(7, 3, 900)])),
            "trim with pins": encode_trim(PIN_TRIM),
            "drop": encode_drop(DropCommand(DropKind.CONSUMER_GROUP, 6)),
            "lost": encode_lost(LostCommand([NextOffset(7, 3, 900)], 5, frozenset((4, 2)))),
            "rehash": encode_rehash(RehashCommand(7, 3, 8)),
        },
    )


@given(longs, longs, longs, resolutions, st.binary(max_size=20), st.integers(0, 9))
def test_append_round_trip(
    store_time_ms: int,
    boot_id: int,
    sequence: int,
    parts: list[PartResolution],
    batch: bytes,
    at: int,
) -> None:
    """Decoding gives what was decided, and where the untouched batch starts."""
    payload = bytes(at) + encode_append(store_time_ms, boot_id, sequence, parts) + batch
    command = decode_append(payload, at)
    assert (command.store_time_ms, command.broker_boot_id, command.sequence) == (
        store_time_ms,
        boot_id,
        sequence,
    )
    assert list(command.parts) == parts == decode_resolution(command.resolution)
    assert payload[command.batch_at :] == batch


@given(longs, st.lists(st.tuples(words, words, words, changes), max_size=4))
def test_leases_round_trip(
    group_time_ms: int, sections: list[tuple[int, int, int, LeaseChange]]
) -> None:
    """Decoding gives every section with its rows, still as bytes."""
    payload = encode_leases(group_time_ms, sections)
    assert command_kind(payload) is CommandKind.LEASES
    decoded_time_ms, decoded = decode_leases(payload)
    assert decoded_time_ms == group_time_ms
    for (group_id, topic_id, queue, change), section in zip(sections, decoded, strict=True):
        assert (section.consumer_group_id, section.topic_id, section.queue) == (
            group_id,
            topic_id,
            queue,
        )
        puts = [(int.from_bytes(offset), decode_lease(row)) for offset, row in section.puts]
        deletes = [int.from_bytes(offset) for offset in section.deletes]
        assert (
            LeaseChange(
                section.generation,
                section.head,
                section.head_changed,
                puts,
                deletes,
                section.clear,
                section.forget,
            )
            == change
        )


@given(leases)
def test_lease_row_round_trip(lease: Lease) -> None:
    """A lease row is 60 bytes and says everything a lease does."""
    row = encode_lease(lease)
    assert len(row) == LEASE_ROW_BYTES == 60
    assert decode_lease(row) == lease


def test_a_dead_letter_holds_its_two_commands() -> None:
    """Both are found by their offsets; the batch offset counts from the payload's start."""
    payload = (
        encode_dead_letter(
            encode_leases(STORE_TIME_MS, [(1, 2, 3, CHANGE)]),
            encode_append(STORE_TIME_MS, 0, 0, RESOLUTION),
        )
        + b"the batch"
    )
    command = decode_dead_letter(payload)
    _, sections = decode_leases(payload, command.leases_at)
    assert sections[0].head == CHANGE.head
    append = decode_append(payload, command.append_at)
    assert list(append.parts) == RESOLUTION
    assert payload[append.batch_at :] == b"the batch"


def test_rare_commands_round_trip() -> None:
    """Decoding undoes encoding."""
    assert decode_own(encode_own(OWN)) == OWN
    assert decode_own(encode_own(OWN)[:-8]) == replace(OWN, revision=0)
    epoch = EpochCommand(1, 2, 3, 2**40, 5)
    assert decode_seal(encode_seal(epoch)) == epoch == decode_open(encode_open(epoch))
    reopened = replace(epoch, queue_count=16)
    assert decode_open(encode_open(reopened)) == reopened
    rehash = RehashCommand(1, 2, 16)
    assert decode_rehash(encode_rehash(rehash)) == rehash
    trim = TrimCommand(2**40, STORE_TIME_MS, [TrimmedQueue(1, 2, 2**40), TrimmedQueue(1, 3, 0)])
    assert decode_trim(encode_trim(trim)) == trim
    assert decode_trim(encode_trim(PIN_TRIM)) == PIN_TRIM
    drop = DropCommand(DropKind.TOPIC, 9)
    assert decode_drop(encode_drop(drop)) == drop
    lost = LostCommand([NextOffset(1, 2, 2**40)], 2**40, frozenset((0, 2**20)))
    payload = encode_lost(lost)
    assert decode_lost(payload) == lost
    assert decode_lost(payload + b"saved").saved_at == len(payload)


@pytest.mark.parametrize(
    "decode",
    [
        decode_append,
        decode_leases,
        decode_dead_letter,
        decode_own,
        decode_seal,
        decode_open,
        decode_trim,
        decode_drop,
        decode_lost,
    ],
)
def test_other_bytes_are_refused(decode: Callable[[bytes], object]) -> None:
    """An empty payload, another kind, a later version and a cut payload are command errors."""
    later = bytearray(encode_drop(DropCommand(DropKind.TOPIC, 9)))
    later[1] = 2
    for payload in (b"", b"\x63\x01" + bytes(60), bytes(later), bytes(60)):
        with pytest.raises(CommandError):
            decode(payload)


def test_cut_commands_are_refused() -> None:
    """Every prefix of a command with rows is an error."""
    cases: list[tuple[bytes, Callable[[bytes], object]]] = [
        (encode_append(1, 2, 3, RESOLUTION), decode_append),
        (encode_leases(1, [(1, 2, 3, CHANGE)]), decode_leases),
        (encode_own(OWN)[:-8], decode_own),
        (encode_trim(TrimCommand(1, 2, [TrimmedQueue(1, 2, 3)])), decode_trim),
        (encode_lost(LostCommand([NextOffset(1, 2, 3)], 0, frozenset((1,)))), decode_lost),
        (encode_append(1, 2, 3, PENDING_RESOLUTION), decode_append),
        (encode_trim(PIN_TRIM), decode_trim),
    ]
    # A trim without pins is a whole one.
    whole = len(encode_trim(TrimCommand(55, STORE_TIME_MS, PIN_TRIM.queues)))
    for payload, decode in cases:
        for length in set(range(len(payload))) - ({whole} if decode is decode_trim else set()):
            with pytest.raises(CommandError):
                decode(payload[:length])


def test_unknown_kinds_are_refused() -> None:
    """Kind, version, lease state and drop kind outside their ranges are command errors."""
    assert command_kind(encode_drop(DropCommand(DropKind.TOPIC, 9))) is CommandKind.DROP
    for payload in (b"", b"\x01", b"\x63\x01", b"\x01\x02"):
        with pytest.raises(CommandError):
            command_kind(payload)
    with pytest.raises(CommandError):
        decode_lease(b"\x07" + bytes(59))
    with pytest.raises(CommandError):
        decode_lease(bytes(10))
    with pytest.raises(CommandError):
        decode_drop(b"\x08\x01\x05\x00" + bytes(4))


_WAITING = Lease(LeaseState.WAITING, 1, 3, 1, 9, 0, 0, 0, 0, 0, False)
_HEAD_BYTES = len(encode_leases(0, []))


@given(
    puts=st.integers(0, 40),
    deletes=st.integers(0, 40),
    max_bytes=st.integers(0, 2_000),
)
def test_parts_of_a_change_are_the_whole_in_its_order(
    puts: int, deletes: int, max_bytes: int
) -> None:
    """Each part but a single row keeps to the limit, and says how many bytes it takes."""
    whole = LeaseChange(
        3, 90, False, tuple((at, _WAITING) for at in range(puts)), tuple(range(50, 50 + deletes))
    )
    parts: list[LeaseChange] = []
    rest: LeaseChange | None = whole
    while rest is not None:
        part, rest = cut_change(rest, max_bytes)
        parts.append(part)
    assert [row for part in parts for row in part.puts] == list(whole.puts)
    assert [row for part in parts for row in part.deletes] == list(whole.deletes)
    for part in parts:
        size_bytes = len(encode_leases(0, [(1, 2, 3, part)])) - _HEAD_BYTES
        assert section_bytes(part) == size_bytes
        assert size_bytes <= max_bytes or len(part.puts) + len(part.deletes) <= 1
        assert part[:3] == whole[:3]


@pytest.mark.parametrize(
    "change",
    [
        LeaseChange(0, 9, True, tuple((at, _WAITING) for at in range(9))),
        LeaseChange(0, 9, False, (), tuple(range(9)), clear=True),
        LeaseChange(0, 9, False, (), tuple(range(9)), forget=True),
        LeaseChange(0, 9, False, tuple((at, _WAITING._replace(attempt=5)) for at in range(9))),
    ],
)
def test_a_change_whose_parts_alone_would_be_wrong_is_not_cut(change: LeaseChange) -> None:
    """A head passes over messages without rows; a repeated pop finds all that it took."""
    assert cut_change(change, 100) == (change, None)


def test_a_change_of_more_rows_than_a_section_counts_says_its_bytes() -> None:
    """It takes several sections of one command."""
    change = LeaseChange(0, 70_000, True, (), tuple(range(70_000)))
    encoded = encode_leases(0, [(1, 2, 3, change)])
    assert section_bytes(change) == len(encoded) - _HEAD_BYTES
