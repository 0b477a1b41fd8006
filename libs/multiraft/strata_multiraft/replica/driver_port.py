"""Port of a replica to the driver that hosts it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from strata_multiraft.base.in_flight import InFlightLimits
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.replica.disk_marks import DiskMarks
from strata_raft import Effects
from strata_runtime.clock import Clock
from strata_seglog.frames import Frame

if TYPE_CHECKING:
    from strata_multiraft.replica.replica import Replica


class Driver(Protocol):
    """The part of the driver that a replica needs."""

    in_flight: InFlightLimits
    options: MultiRaftOptions
    marks: DiskMarks
    clock: Clock

    def work_queued(self, replica: Replica) -> None:
        """See to it that the replica's queued proposals and reads are stepped soon."""

    def entries_ready(self, replica: Replica) -> None:
        """See to it that the replica's committed entries are applied soon."""

    def perform(self, replica: Replica, effects: Effects) -> None:
        """Do the effects of a step."""

    def end_turn(self) -> None:
        """Send what was collected."""

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit."""

    def refused(self, reason: str) -> None:
        """Count a refused proposal."""

    def is_disk_full(self) -> bool:
        """Tell whether the log had no room a moment ago."""

    def may_lead(self, replica_id: int) -> bool:
        """Tell whether a replica's node may be given a leadership."""

    def give_up_leadership(self, replica: Replica) -> None:
        """See to it that a leader that can decide nothing any more is followed by another."""
