"""Port of a replica to the driver that hosts it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from strata_multiraft.base.in_flight import InFlightLimits
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.replica.disk_marks import DiskMarks
from strata_raft import Effects
from strata_runtime.clock import Clock
from strata_seglog.frames import Frame

ReplicaT = TypeVar("ReplicaT", contravariant=True)


class DriverFacts(Protocol):
    """A driver's knowledge of the nodes: limits, clocks and disks."""

    options: MultiRaftOptions
    marks: DiskMarks
    clock: Clock

    def may_lead(self, replica_id: int) -> bool:
        """Tell whether a replica's node may be given a leadership."""

    def is_silent(self, replica_id: int) -> bool:
        """Tell whether a replica's node is known and not heard."""


class Driver(DriverFacts, Protocol[ReplicaT]):
    """The part of the driver that a replica needs; the replica says of which class it is."""

    in_flight: InFlightLimits

    def work_queued(self, replica: ReplicaT) -> None:
        """See to it that the replica's queued proposals and reads are stepped soon."""

    def entries_ready(self, replica: ReplicaT) -> None:
        """See to it that the replica's committed entries are applied soon."""

    def perform(self, replica: ReplicaT, effects: Effects) -> None:
        """Do the effects of a step."""

    def end_turn(self) -> None:
        """Send what was collected."""

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit."""

    def refused(self, reason: str) -> None:
        """Count a refused proposal."""

    def is_disk_full(self) -> bool:
        """Tell whether the log had no room a moment ago."""

    def give_up_leadership(self, replica: ReplicaT) -> None:
        """See to it that a leader that can decide nothing any more is followed by another."""
