"""The bytes of metric windows."""

from __future__ import annotations

import random

import pytest

from strata_runtime.windows import (
    COLUMNS,
    MAX_BATCH_ROWS,
    Value,
    WindowBatch,
    WindowFormatError,
    WindowKind,
    batches_of,
    decode,
    encode,
)


def _row(kind: WindowKind, chance: random.Random) -> dict[str, Value]:
    row: dict[str, Value] = {}
    for column in COLUMNS[kind]:
        if column.type == "int":
            row[column.name] = chance.randrange(-(1 << 63), 1 << 63)
        elif column.type == "float":
            row[column.name] = chance.random() * 1e6
        else:
            row[column.name] = "".join(chance.choices("äb漢c", k=chance.randrange(20)))
    return row


def _batch(kind: WindowKind, rows: int) -> WindowBatch:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    made = batches_of(kind, "storage-1", 20_000, 10_000, (_row(kind, chance) for _ in range(rows)))
    return next(made)


@pytest.mark.parametrize("kind", list(WindowKind))
def test_what_is_encoded_is_decoded(kind: WindowKind) -> None:
    """Every column of every kind comes back as it was."""
    batch = _batch(kind, 50)
    decoded = decode(encode(batch))
    assert (decoded.kind, decoded.node_id) == (kind, "storage-1")
    assert (decoded.start_ms, decoded.length_ms, len(decoded)) == (20_000, 10_000, 50)
    assert list(decoded.rows()) == list(batch.rows())


def test_rows_are_cut_into_batches() -> None:
    """No batch has more rows than it may, and none is lost."""
    rows = [{"queue": number} for number in range(25)]
    made = list(batches_of(WindowKind.QUEUE, "n", 0, 10_000, rows, max_rows=10))
    assert [len(batch) for batch in made] == [10, 10, 5]
    assert [queue for batch in made for queue in batch.columns["queue"]] == list(range(25))


def test_a_column_that_a_row_lacks_has_its_default() -> None:
    """A writer fills in only what it knows."""
    (batch,) = batches_of(WindowKind.NODE, "n", 0, 10_000, [{"cpu_cores": 0.5}])
    (row,) = decode(encode(batch)).rows()
    assert row["cpu_cores"] == 0.5
    assert (row["rack"], row["leaders"], row["sync_p99_ms"]) == ("", 0, 0.0)


def test_an_older_writers_batch_is_read() -> None:
    """A column that was not sent has its default in every row."""
    batch = WindowBatch(WindowKind.QUEUE, "n", 0, 10_000, {"queue": [1, 2], "topic": ["a", "b"]})
    decoded = decode(encode(batch))
    assert list(decoded.columns) == [column.name for column in COLUMNS[WindowKind.QUEUE]]
    assert list(decoded.columns["queue"]) == [1, 2]
    assert list(decoded.columns["bytes_in"]) == [0, 0]


def test_a_batch_that_is_too_large_is_not_encoded() -> None:
    """The writer has to cut."""
    rows = MAX_BATCH_ROWS + 1
    with pytest.raises(ValueError, match="more than"):
        encode(WindowBatch(WindowKind.QUEUE, "n", 0, 10_000, {"queue": range(rows)}))


def test_damaged_bytes_are_refused() -> None:
    """Bytes cut off or changed anywhere never give anything but an error or a batch."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    body = encode(_batch(WindowKind.QUEUE, 20))
    for _ in range(300):
        damaged = bytearray(body[: chance.randrange(len(body) + 1)])
        if damaged:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            decode(bytes(damaged))
        except WindowFormatError:
            continue
    with pytest.raises(WindowFormatError):
        decode(b"")
    with pytest.raises(WindowFormatError):
        decode(body[:-4])
