"""Keys and values of the replicated state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from strata_mq.layout import rows
from strata_mq.layout.batch import BatchBuilder, BatchView, OutgoingMessage, PartKey
from strata_mq.layout.cq_rows import CqRow, encode_cq_row
from strata_mq.layout.hashing import pack_message_id
from strata_mq.layout.rows import (
    AppliedRow,
    BrokerRow,
    ConfigurationRow,
    HeadRow,
    LocalRow,
    MessagePosition,
    MoveRow,
    QueueRow,
    RowKind,
)

RAFT_GROUP = 2
STORE_TIME_MS = 1_795_257_925_589
MESSAGE_ID = pack_message_id("0190DB80539A6F48DE88837ED15B1664A0")

words = st.integers(0, 2**32 - 1)
longs = st.integers(0, 2**64 - 1)


def batch_of(bodies: list[bytes]) -> BatchView:
    builder = BatchBuilder(crc32c)
    builder.add(
        PartKey(7, 0, 0, 1),
        [
            OutgoingMessage(body, crc32c(body), 5, number, MESSAGE_ID, 1, 0, ())
            for number, body in enumerate(bodies)
        ],
    )
    return BatchView(builder.build(), crc32c)


def test_golden_bytes(golden: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """The layout of docs/data-layout.md section 5, byte for byte."""
    day = rows.day_of(STORE_TIME_MS)
    view = batch_of([b"first", b"second"])
    golden(
        "rows.txt",
        {
            "applied key": rows.applied_key(RAFT_GROUP),
            "applied": AppliedRow(9, 3, STORE_TIME_MS, 4).encode(),
            "owned key": rows.owned_key(RAFT_GROUP, 4000),
            "owned": rows.encode_owned(96),
            "queue key": rows.queue_key(RAFT_GROUP, 7, 3),
            "queue": QueueRow(100, 20, STORE_TIME_MS, 1, True).encode(),
            "rehashed queue": QueueRow(100, 20, STORE_TIME_MS, 1, False, 8).encode(),
            "cq key": rows.cq_key(RAFT_GROUP, 7, 3, 98),
            "cq": encode_cq_row(200, 9, STORE_TIME_MS, view.row_columns(0, 2), 2),
            "head key": rows.head_key(RAFT_GROUP, 6, 7, 3),
            "head": HeadRow(99, 1).encode(),
            "lease key": rows.lease_key(RAFT_GROUP, 6, 7, 3, 98),
            "id key": rows.id_key(RAFT_GROUP, day, 7, MESSAGE_ID),
            "id": MessagePosition(3, 98).encode(),
            "message key key": rows.message_key_key(RAFT_GROUP, day, 7, 0xABCDEF, 3, 98),
            "broker key": rows.broker_key(RAFT_GROUP, 0xB0B0),
            "broker": BrokerRow(5, 9, STORE_TIME_MS, b"resolution").encode(),
            "tombstone key": rows.tombstone_key(RAFT_GROUP, 1, 7),
            "tombstone": rows.encode_tombstone(STORE_TIME_MS, 7, 7),
            "tombstone of a run": rows.encode_tombstone(STORE_TIME_MS, 7, 1_000_006),
            "configuration": ConfigurationRow(8, b"payload").encode(),
            "move key": rows.move_key(RAFT_GROUP, 7, 3),
            "move": MoveRow(1, 100, 2).encode(),
            "queue place key": rows.queue_place_key(RAFT_GROUP, 7, 3),
            "queue place": rows.encode_queue_place(True),
            "own revision": rows.encode_own_revision(900),
            "local": LocalRow(77, 9, 3).encode(),
        },
    )


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6), words, longs, longs)
def test_a_cq_row_finds_every_message_of_its_run(
    bodies: list[bytes], message_at: int, raft_index: int, store_time_ms: int
) -> None:
    """Location = first message + what stands before; columns are those of the batch."""
    view = batch_of(bodies)
    columns = view.row_columns(0, len(bodies))
    row = CqRow(encode_cq_row(message_at, raft_index, store_time_ms, columns, len(bodies)))
    assert (row.count, row.raft_index, row.store_time_ms) == (
        len(bodies),
        raft_index,
        store_time_ms,
    )
    at = message_at
    for ordinal, body in enumerate(bodies):
        assert row.location(ordinal) == (at, len(body), crc32c(body))
        at += len(body)
    assert list(row.lengths) == [len(body) for body in bodies]
    assert list(row.checksums) == [crc32c(body) for body in bodies]
    assert list(row.tag_hashes) == [5] * len(bodies)
    assert list(row.group_hashes) == list(range(len(bodies)))


@given(words, longs, longs, longs, st.booleans(), st.binary(max_size=30))
def test_values_round_trip(
    word: int, first: int, second: int, third: int, flag: bool, resolution: bytes
) -> None:
    """Decoding undoes encoding."""
    for row in (
        AppliedRow(first, second, third, first),
        ConfigurationRow(first, resolution),
        MoveRow(word, first, word),
        LocalRow(first, second, third),
        QueueRow(first, second, third, word, flag),
        QueueRow(first, second, third, word, flag, word % 2**16),
        HeadRow(first, word),
        MessagePosition(word, first),
        BrokerRow(first, second, third, resolution),
    ):
        assert type(row).decode(row.encode()) == row
    last_id = max(word, second % 2**32)
    assert rows.tombstone_last_id(word, rows.encode_tombstone(first, word, last_id)) == last_id
    assert rows.decode_owned(rows.encode_owned(word % 4097)) == word % 4097


@given(words, words, words, words, longs)
def test_keys_are_read_back(
    raft_group: int, group_id: int, topic: int, queue: int, at: int
) -> None:
    """Ids, queues and offsets come back from the keys that hold them."""
    lease = rows.lease_key(raft_group, group_id, topic, queue, at)
    assert rows.offset_of_key(lease) == at
    assert rows.parse_head_key(lease) == (group_id, topic, queue)
    assert lease == rows.lease_prefix(raft_group, group_id, topic, queue) + at.to_bytes(8)
    cq = rows.cq_key(raft_group, topic, queue, at)
    assert rows.offset_of_key(cq) == at
    assert rows.parse_queue_key(cq) == (topic, queue)
    assert cq.startswith(rows.cq_prefix(raft_group, topic, queue))
    key = rows.message_key_key(raft_group, 5, topic, at, queue, at)
    assert rows.parse_message_key_key(key) == (queue, at)
    assert key.startswith(rows.message_key_prefix(raft_group, 5, topic, at))


@given(words, words, words, longs, longs)
def test_offsets_sort_as_numbers(
    raft_group: int, topic: int, queue: int, one: int, other: int
) -> None:
    """Key order is offset order, which a reverse seek relies on."""
    keys = [rows.cq_key(raft_group, topic, queue, offset) for offset in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)


@given(st.binary(max_size=6), st.binary(max_size=3))
def test_prefix_end_is_above_all_keys_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    """`delete_range(prefix, prefix_end(prefix))` takes these keys and no other."""
    end = rows.prefix_end(prefix)
    if end:
        assert prefix + rest < end
        assert not end.startswith(prefix) or end == prefix
    else:
        assert set(prefix) <= {0xFF}


def test_rows_of_a_kind_share_their_prefix_and_ids_are_turned_round() -> None:
    """Kinds and days are contiguous ranges; an id's growing half comes first."""
    day = rows.day_of(STORE_TIME_MS)
    key = rows.id_key(RAFT_GROUP, day, 7, MESSAGE_ID)
    assert key.startswith(rows.day_prefix(RAFT_GROUP, RowKind.ID, day))
    assert key.startswith(rows.kind_prefix(RAFT_GROUP, RowKind.ID))
    assert key.startswith(rows.raft_group_prefix(RAFT_GROUP))
    assert key.endswith(MESSAGE_ID[9:] + MESSAGE_ID[:9])


def test_an_applied_row_of_version_1_is_read() -> None:
    """It had no low index."""
    value = bytes([1]) + b"".join(number.to_bytes(8) for number in (9, 3, STORE_TIME_MS))
    assert AppliedRow.decode(value) == AppliedRow(9, 3, STORE_TIME_MS, 0)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=40))
def test_keys_of_a_run_are_those_of_each_use(uses: list[tuple[int, int]]) -> None:
    """Keys that apply writes in one pass are those that a lookup of each message key reads."""
    head = rows.message_keys_head(RAFT_GROUP, 5, 7)
    assert [head + tail for tail in rows.message_key_tails(3, uses)] == [
        rows.message_key_key(RAFT_GROUP, 5, 7, key_hash, 3, offset) for offset, key_hash in uses
    ]
