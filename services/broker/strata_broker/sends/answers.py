"""Answers to sends that are stored, many at once: the plain twin of `SendPass.answer_each`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata_broker.base import wire
from strata_edge.ports import HotCall

AnswerEach = Callable[
    [list[HotCall], Sequence[Sequence[str]], Sequence[int]], list[tuple[int, Exception]]
]
"""Completes calls whose messages are stored, given the ids of each call's messages and the offsets
of all messages; returns which calls failed to take their answer, and how."""


def answer_each(
    calls: list[HotCall], message_ids: Sequence[Sequence[str]], offsets: Sequence[int]
) -> list[tuple[int, Exception]]:
    """See `AnswerEach`."""
    failed = []
    first = 0
    for number, (call, own_ids) in enumerate(zip(calls, message_ids, strict=True)):
        end = first + len(own_ids)
        try:
            call.complete((wire.sent(own_ids, offsets[first:end]),))
        except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
            failed.append((number, failure))
        first = end
    return failed
