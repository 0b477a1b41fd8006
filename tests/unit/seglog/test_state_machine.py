"""The CommitLog against a model, any operation after any other, crashes included."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strata_seglog.errors import DiskFull, WriteFailed
from strata_seglog.frames import Frame, FrameKind
from strata_seglog.log import CommitLog
from strata_testing.simulated_disk import Keep, SimulatedDisk

Kit = Any
SEEDS = st.integers(0, 2**32)
REPLICAS = st.sampled_from((1, 2, 3))


class LogMachine(RuleBasedStateMachine):
    """A log on a simulated disk beside what it must hold."""

    # The fixture's value, set by the test in a subclass.
    kit: Kit
    disk: SimulatedDisk
    log: CommitLog

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.workload = self.kit.Workload(seed, payload_bytes_max=400)
        # The durable state, and the batches written after it.
        self.synced = self.kit.Model()
        self.unsynced: list[Frame] = []
        # Frames of refused writes that a power loss may leave behind, per refused write.
        self.refused: list[list[Frame]] = []
        self.low: dict[int, int] = {}
        self.seen: dict[int, tuple[int, int, int, int]] = {}
        self.log = self.kit.open(self.disk, segment_bytes=4096)

    def written(self) -> Any:
        return self.synced.copy().apply(self.unsynced)

    def note_synced(self) -> None:
        self.synced.apply(self.unsynced)
        self.unsynced = []

    @rule()
    def write(self) -> None:
        frames = self.workload.batch(self.written())
        before = self.log.synced_position
        self.log.write(frames)
        if self.log.synced_position != before:
            self.note_synced()  # Going on to the next segment syncs what stands.
        self.unsynced += frames
        self.refused = []  # Zeroed and synced before anything is written in their place.

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.note_synced()

    @rule()
    def write_and_sync(self) -> None:
        frames = self.workload.batch(self.written())
        self.log.write_and_sync(frames)
        self.unsynced += frames
        self.note_synced()
        self.refused = []

    @rule(error=st.sampled_from((errno.ENOSPC, errno.EIO)), nth=st.integers(1, 4))
    def refused_write(self, error: int, nth: int) -> None:
        frames = self.workload.batch(self.written())
        before = self.log.synced_position
        self.disk.fail("write", error, nth=nth)
        try:
            self.log.write(frames)
        except (DiskFull, WriteFailed):
            if self.log.synced_position != before:
                self.note_synced()
            self.refused.append(self.unsynced + frames)
            self.unsynced = []
        else:
            if self.log.synced_position != before:
                self.note_synced()
            self.unsynced += frames
            self.refused = []
        self.disk.heal()

    @rule(keep=st.sampled_from(Keep))
    def power_loss(self, keep: Keep) -> None:
        self.disk.power_loss(keep)
        self.log = self.kit.open(self.disk, segment_bytes=4096)
        shown = self.kit.state_of(self.log, self.low)
        for frames in [self.unsynced, *self.refused]:
            for count in range(len(frames) + 1):
                possible = self.synced.copy().apply(frames[:count])
                if possible.state(self.low) == shown:
                    self.synced = possible
                    self.unsynced, self.refused = [], []
                    return
        raise AssertionError(f"recovered {shown}, neither more nor less was written")

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.note_synced()
        self.refused = []
        self.log = self.kit.open(self.disk, segment_bytes=4096)

    @rule(replica_id=REPLICAS, kept=st.integers(0, 5))
    def free(self, replica_id: int, kept: int) -> None:
        last = max(self.synced.entries.get(replica_id, {}), default=0)
        self.low[replica_id] = max(self.low.get(replica_id, 0), last - kept)
        self.log.free_before(self.low)

    def is_needed(self, replica_id: int, index: int) -> bool:
        return index >= self.low[replica_id]

    @precondition(lambda self: not self.unsynced)
    @rule(kept=st.integers(0, 5), max_bytes=st.integers(1, 2000))
    def relocate(self, kept: int, max_bytes: int) -> None:
        for replica_id, entries in self.synced.entries.items():
            last = max(entries, default=0)
            self.low[replica_id] = max(self.low.get(replica_id, 0), last - kept)
        step = self.log.relocate_step(self.is_needed, max_bytes)
        if step.copied_frames:
            # The remains of a refused write are written over.
            self.refused = []

    @rule()
    def mark(self) -> None:
        self.log.mark()
        self.note_synced()
        self.refused = []

    @precondition(lambda self: 3 not in self.synced.removed and not self.unsynced)
    @rule()
    def remove(self) -> None:
        if self.workload.chance.random() < 0.1:
            self.log.write_and_sync([Frame(FrameKind.REMOVED, 3, 30, 0, 0)])
            self.synced.removed.add(3)
            self.workload.replicas = (1, 2)
            self.refused = []

    @invariant()
    def shows_what_is_durable(self) -> None:
        if hasattr(self, "log"):
            assert self.kit.state_of(self.log, self.low) == self.synced.state(self.low)

    @invariant()
    def never_uses_a_position_twice(self) -> None:
        if not hasattr(self, "log"):
            return
        for frame in self.log.scan():
            shown = (frame.replica_id, frame.kind, frame.term, frame.index)
            assert self.seen.setdefault(frame.position, shown) == shown

    @invariant()
    def nothing_is_rotten(self) -> None:
        if hasattr(self, "log"):
            assert self.log.scrub_step(1 << 30).finished

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


def test_the_log_equals_its_model(kit: Kit) -> None:
    """After any run of operations, faults and crashes the log shows what the model shows."""
    run_state_machine_as_test(
        type("KitLogMachine", (LogMachine,), {"kit": kit}),
        settings=settings(
            max_examples=120,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            database=None,
        ),
    )
