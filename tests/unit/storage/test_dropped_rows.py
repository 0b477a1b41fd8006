"""Decisions from before a DROP come behind it in the log: no row of a dropped thing is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata_mq.commands.common import encode_leases
from strata_mq.commands.rare import (
    DropCommand,
    DropKind,
    EpochCommand,
    OwnCommand,
    QueueGrant,
    QueuePlace,
    encode_drop,
    encode_open,
    encode_own,
    encode_seal,
)
from strata_mq.layout.rows import RowKind
from strata_mq.leases.queue_leases import LeaseChange, LeaseState
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, KEY, ServingLeader, lease
from tests.unit.storage.waiting_leader import NOW_MS, TOPIC_ID

TOPIC_DROP = DropCommand(DropKind.TOPIC, TOPIC_ID)
GROUP_DROP = DropCommand(DropKind.CONSUMER_GROUP, CONSUMER_GROUP_ID)
# Rows of days, and of the replica: they do not stay.
PASSING = {RowKind.APPLIED, RowKind.TRACE, RowKind.OWN_REVISION}


def leases() -> bytes:
    """Return a LEASES command with a head and two rows."""
    rows = [(offset, lease(LeaseState.LEASED, NOW_MS + 50)) for offset in range(2)]
    return encode_leases(NOW_MS, [(*KEY, LeaseChange(0, 2, True, tuple(rows)))])


def own() -> bytes:
    """Return an OWN command that names a queue of the topic."""
    return encode_own(OwnCommand([], [QueueGrant(TOPIC_ID, 1, QueuePlace.HERE)]))


CASES: dict[str, tuple[DropCommand, Callable[[], bytes]]] = {
    "leases of a topic": (TOPIC_DROP, leases),
    "leases of a consumer group": (GROUP_DROP, leases),
    "seal": (TOPIC_DROP, lambda: encode_seal(EpochCommand(TOPIC_ID, 1, 0, 3, 4))),
    "open": (TOPIC_DROP, lambda: encode_open(EpochCommand(TOPIC_ID, 1, 2, 3, 4))),
    "own": (TOPIC_DROP, own),
}


def kept_rows(node: ServingLeader) -> dict[bytes, bytes]:
    """Return the rows that stay until somebody removes them."""
    rows = node.store.scan(b"", b"\xff" * 8)
    return {key: value for key, value in rows if key[4] not in PASSING}


@pytest.mark.parametrize("case", CASES)
async def test_no_row_comes_back(case: str) -> None:
    """The rows before the command are the rows after it; of what was not dropped they differ."""
    drop, command = CASES[case]
    node = ServingLeader()
    node.apply(encode_drop(drop))
    before = kept_rows(node)
    node.apply(command())
    assert kept_rows(node) == before
    other = ServingLeader()
    before = kept_rows(other)
    other.apply(command())
    assert kept_rows(other) != before, "the command writes rows"
