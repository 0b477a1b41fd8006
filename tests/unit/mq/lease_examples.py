"""Common parts of examples of leases: times, pops, runs of messages."""

from __future__ import annotations

from strata_mq.leases.queue_leases import Columns, Lease, QueueLeases, TakeRequest

NOW_MS = 1_000_000
INVISIBLE_MS = 30_000
LATER_MS = NOW_MS + INVISIBLE_MS
HOLDER = 77


def request(
    max_messages: int = 32,
    *,
    max_bytes: int = 1 << 30,
    auto_renew: bool = False,
    attempt: int = 0,
    fifo: bool = False,
    max_attempts: int = 17,
    one_per_message_group: bool = False,
    broker: int = 0,
) -> TakeRequest:
    return TakeRequest(
        max_messages=max_messages,
        max_bytes=max_bytes,
        invisible_ms=INVISIBLE_MS,
        auto_renew=auto_renew,
        holder=HOLDER,
        attempt=attempt,
        fifo=fifo,
        max_attempts=max_attempts,
        dead_letter_topic_id=5,
        one_per_message_group=one_per_message_group,
        broker=broker,
    )


def columns(
    count: int,
    *,
    groups: list[int] | None = None,
    selected: list[int] | None = None,
    base: int = 0,
) -> list[Columns]:
    return [Columns(base, count, selected, groups or [0] * count, [100] * count)]


def offsets(leases: object) -> list[int]:
    assert isinstance(leases, list)
    return [offset for offset, _ in leases]


def ack(leases: QueueLeases, offset: int, lease: Lease, now_ms: int = NOW_MS + 1) -> bool:
    ok, _ = leases.ack(offset, lease.lease_number, leases.generation, lease.visible_at_ms, now_ms)
    return ok
