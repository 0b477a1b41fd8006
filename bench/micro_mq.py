"""Micro-benchmark of the pure message core: microseconds per call, as one JSON object.

Run: `python bench/micro_mq.py`. Each figure is the best of several rounds, so that a busy machine
disturbs it least; single thread, no I/O.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter

from google_crc32c import value as crc32c

from strata_mq.commands import decode_leases, encode_leases
from strata_mq.layout import (
    BatchBuilder,
    BatchView,
    CqRow,
    OutgoingMessage,
    PartKey,
    encode_cq_row,
    pack_message_id,
    text_hash,
)
from strata_mq.leases import Columns, Lease, QueueLeases, Taken, TakeRequest
from strata_mq.requests import (
    DEFAULT_LIMITS,
    ReceiptHandle,
    check_message,
    decode_handle,
    encode_handle,
)
from strata_mq.traces import delivery_fragment, store_fragment

ROUNDS = 7
CALLS = 400
POP = 32
ACKS = 20_000
BODY = bytes(1024)
MESSAGE_ID = "0190DB80539A6F48DE88837ED15B1664A0"
PROPERTIES = {"region": "eu", "source": "checkout"}


def best_microseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return microseconds per call in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = perf_counter()
        for _ in range(calls):
            call()
        best = min(best, perf_counter() - started)
    return best / calls * 1e6


def outgoing(count: int) -> list[OutgoingMessage]:
    """Return messages of 1 KB with one key each."""
    stored = BODY
    return [
        OutgoingMessage(
            stored,
            crc32c(stored),
            text_hash("tag"),
            0,
            pack_message_id(f"0190DB80539A6F48DE88837ED15B{number:06X}"),
            1,
            1_795_257_925_000,
            (text_hash("key"),),
        )
        for number in range(count)
    ]


def build(messages: list[OutgoingMessage]) -> bytes:
    """Build one batch of one part."""
    builder = BatchBuilder(crc32c)
    builder.add(PartKey(7, -1, 99, 8), messages)
    return builder.build()


def request(*, fifo: bool = False) -> TakeRequest:
    """Return a pop of 32."""
    return TakeRequest(
        max_messages=POP,
        max_bytes=1 << 30,
        invisible_ms=30_000,
        auto_renew=False,
        holder=5,
        attempt=0,
        fifo=fifo,
        max_attempts=17,
        dead_letter_topic_id=3,
    )


def take_microseconds(group_hashes: list[int], *, fifo: bool) -> float:
    """Return microseconds per take of 32 new messages, no acks."""
    lengths = [1024] * POP
    best = float("inf")
    for _ in range(ROUNDS):
        leases = QueueLeases(head=0)
        pop = request(fifo=fifo)
        runs = []
        for number in range(CALLS):
            # Another message group per message, also from pop to pop.
            groups = [value and value + number * POP for value in group_hashes]
            runs.append([Columns(number * POP, POP, None, groups, lengths)])
        started = perf_counter()
        for number, run in enumerate(runs):
            leases.take(pop, 1_000 + number, (number + 1) * POP, run)
        best = min(best, perf_counter() - started)
    return best / CALLS * 1e6


def drain(*, group_of: Callable[[int], int], fifo: bool) -> float:
    """Return microseconds per ack of many leased messages, in order."""
    best = float("inf")
    for _ in range(ROUNDS):
        leases = QueueLeases(head=0)
        pop = request(fifo=fifo)
        handles: list[tuple[int, Lease]] = []
        for first in range(0, ACKS, POP):
            groups = [group_of(offset) for offset in range(first, first + POP)]
            columns = [Columns(first, POP, None, groups, [1024] * POP)]
            taken: Taken = leases.take(pop, 1_000, first + POP, columns)
            handles.extend(taken.leases)
        started = perf_counter()
        for offset, lease in handles:
            leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, 2_000)
        best = min(best, perf_counter() - started)
    return best / ACKS * 1e6


def hot_fifo_group() -> float:
    """Return microseconds per pop of one and its ack, 9,000 messages of its group blocked."""
    blocked = 9_000
    leases = QueueLeases(head=0)
    pop = TakeRequest(
        max_messages=1,
        max_bytes=1 << 30,
        invisible_ms=30_000,
        auto_renew=False,
        holder=5,
        attempt=0,
        fifo=True,
        max_attempts=17,
        dead_letter_topic_id=3,
    )
    columns = [Columns(0, blocked, None, [7] * blocked, [10] * blocked)]
    taken = leases.take(pop, 1_000, blocked, columns)
    while leases.head < blocked:
        leases.take(pop, 1_000, blocked, columns)
    rounds = blocked - 1
    started = perf_counter()
    for _ in range(rounds):
        ((offset, lease),) = taken.leases
        leases.ack(offset, lease.lease_number, 0, lease.visible_at_ms, 1_001)
        taken = leases.take(pop, 1_001, blocked, ())
    return (perf_counter() - started) / rounds * 1e6


def figures() -> dict[str, float]:
    """Measure everything."""
    thirty_two, sixty_four = outgoing(32), outgoing(64)
    batch = build(sixty_four)
    view = BatchView(batch, crc32c)
    columns = view.row_columns(0, 64)
    row = encode_cq_row(100, 5, 1_795_257_925_000, columns, 64)
    handle = ReceiptHandle(1, 2, 3, 4, 123_456_789, 1, 0, 1_795_257_955_000)
    text = encode_handle(handle)
    leases = QueueLeases(head=0)
    change = leases.take(
        request(), 1_000, POP, [Columns(0, POP, None, [0] * POP, [1024] * POP)]
    ).change
    assert change is not None
    command = encode_leases(1_000, [(1, 2, 3, change)])
    now_ms = 1_795_257_925_123
    return {
        "batch_build_32_us": best_microseconds(lambda: build(thirty_two)),
        "batch_build_64_us": best_microseconds(lambda: build(sixty_four)),
        "batch_view_64_us": best_microseconds(lambda: BatchView(batch, crc32c)),
        "row_columns_and_encode_64_us": best_microseconds(
            lambda: encode_cq_row(100, 5, now_ms, view.row_columns(0, 64), 64)
        ),
        "cq_row_location_us": best_microseconds(lambda: CqRow(row).location(7)),
        "check_message_plain_us": best_microseconds(
            lambda: check_message(DEFAULT_LIMITS, body_bytes=1024, message_id=MESSAGE_ID)
        ),
        "check_message_tag_key_2_properties_us": best_microseconds(
            lambda: check_message(
                DEFAULT_LIMITS,
                body_bytes=1024,
                message_id=MESSAGE_ID,
                tag="tag",
                keys=("key",),
                properties=PROPERTIES,
            )
        ),
        "pack_message_id_us": best_microseconds(lambda: pack_message_id(MESSAGE_ID)),
        "store_fragment_us": best_microseconds(lambda: store_fragment("A" * 32)),
        "delivery_fragment_us": best_microseconds(
            lambda: delivery_fragment(now_ms, "127.0.0.1:8081", text, 3, 123_456_789, 1)
        ),
        "handle_encode_us": best_microseconds(lambda: encode_handle(handle)),
        "handle_decode_us": best_microseconds(lambda: decode_handle(text)),
        "take_32_plain_us": take_microseconds([0] * POP, fifo=False),
        "take_32_fifo_own_groups_us": take_microseconds(list(range(1, POP + 1)), fifo=True),
        "encode_leases_32_us": best_microseconds(lambda: encode_leases(1_000, [(1, 2, 3, change)])),
        "decode_leases_32_us": best_microseconds(lambda: decode_leases(command)),
        "ack_plain_us": drain(group_of=lambda offset: 0, fifo=False),
        "ack_fifo_own_groups_us": drain(group_of=lambda offset: offset + 1, fifo=True),
        "fifo_pop_and_ack_behind_9000_blocked_us": hot_fifo_group(),
    }


if __name__ == "__main__":
    json.dump({name: round(value, 3) for name, value in figures().items()}, sys.stdout, indent=2)
    sys.stdout.write("\n")
