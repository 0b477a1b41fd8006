"""A whole leader over rows in memory: what it proposes is applied when the test says so."""

from __future__ import annotations

from collections.abc import Sequence

from strata_mq.commands.common import encode_leases
from strata_mq.leases.queue_leases import Lease, LeaseChange, LeaseState
from strata_runtime.metrics import Metrics
from strata_runtime.turns import Turns
from strata_state.rows import ConsumerKey
from strata_storage.base.config import EngineOptions
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.pending import PendingPorts
from strata_storage.reads.reader import LogReaders, MessageReader
from strata_storage.rows.payloads import PayloadReader
from tests.unit.storage.waiting_leader import (
    DEAD_LETTER_TOPIC_ID,
    NOW_MS,
    TOPIC_ID,
    LeaderUnderTest,
    run_here,
)

CONSUMER_GROUP_ID = 5
KEY: ConsumerKey = (CONSUMER_GROUP_ID, TOPIC_ID, 1)


def unlimited_turns() -> Turns:
    """Filters are never made to wait."""
    uncounted = Metrics.disabled()
    return Turns(1 << 40, uncounted.counter("steps"), uncounted.counter("waits"))


class ServingLeader(LeaderUnderTest):
    """`leading` serves pops, acks and dead letters beside messages that wait."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        super().__init__()
        ports = PendingPorts(self.routes, None, run_here, PendingInstruments(self.metrics))
        self.leading = GroupLeader(
            1,
            self.machine,
            self.replica,
            readers=LogReaders(
                MessageReader(self.log, 1, run_here, on_corrupt=lambda index: None),
                PayloadReader(self.log, 1, run_here),
            ),
            clock=self.clock,
            options=options or EngineOptions(),
            pending=ports,
            turns=unlimited_turns(),
        )
        self.machine.listener = self.leading

    def lease_rows(
        self,
        head: int,
        rows: Sequence[tuple[int, Lease]],
        key: ConsumerKey = KEY,
        *,
        known: int | None = None,
    ) -> None:
        """Let leases of an earlier leader be in the rows, and take in the first `known` of them."""
        change = LeaseChange(0, head, True, tuple(rows))
        self.apply(encode_leases(NOW_MS, [(*key, change)]))
        for _, lease in rows[:known]:
            self.leading.sets.note_row(key, lease)


def lease(
    state: LeaseState, visible_at_ms: int, *, attempts: int = 3, group_hash: int = 0
) -> Lease:
    """Return a row that may be delivered three times."""
    return Lease(
        state,
        attempts,
        3,
        1,
        DEAD_LETTER_TOPIC_ID,
        visible_at_ms,
        NOW_MS,
        0,
        group_hash,
        0,
        False,
        5,
    )
