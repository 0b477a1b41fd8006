"""For how long storage nodes were DOWN since they were last steadily UP.

Times DOWN add up: a node whose process dies again and again, each time before `repair_delay_ms` is
over, is lost as much as one that stays away. The sum ends when one process of the node has been UP
for `repair_delay_ms`; being SUSPECT adds nothing and ends nothing. So the restarts of an upgrade
begin no repair unless they take a node away for that long in all, without such a time UP between
them.

Soft state of the metadata leader, by its monotonic clock: it counts what it sees, so time without a
leader, or in which the leader stood still, is no time DOWN. The row of a node keeps the sum in
steps of a tenth of the delay; a new leader goes on from there, having forgotten less than a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2
from strata_runtime.clock import Clock

_STEPS = 10
# Looks are many times a second. One that is later than this was not made in time: nobody looked.
_MAX_LOOK_MS = 1_000


@dataclass(slots=True)
class _Counted:
    """A node: its times so far, and the process that is UP."""

    boot_id: int
    down_ms: int
    up_ms: int = 0


class DownTimes:
    """See the module docstring.

    Args:
        repair_delay_ms: time UP after which a sum ends.
        clock: monotonic time.
    """

    def __init__(self, repair_delay_ms: int, clock: Clock) -> None:
        self._repair_delay_ms = repair_delay_ms
        self._clock = clock
        self._counted: dict[str, _Counted] = {}
        self._looked_ms = self._now_ms()

    def reset(self) -> None:
        """Begin as the new leader: what the rows say counts."""
        self._counted.clear()
        self._looked_ms = self._now_ms()

    def look(
        self, nodes: Collection[meta_pb2.Node], is_silent: Callable[[str], bool]
    ) -> Mapping[str, int]:
        """Count the time since the last look; return the sums to write down, by node id.

        Args:
            nodes: rows of all storage nodes.
            is_silent: whether this leader has not heard a node for a while.
        """
        now_ms = self._now_ms()
        passed_ms = min(now_ms - self._looked_ms, _MAX_LOOK_MS)
        self._looked_ms = now_ms
        before, self._counted = self._counted, {}
        due: dict[str, int] = {}
        for node in nodes:
            counted = before.get(node.node_id)
            if counted is None:
                counted = _Counted(node.boot_id, node.down_ms)
            else:
                # One that is heard is about to be UP.
                is_down = node.state == meta_pb2.NODE_STATE_DOWN and is_silent(node.node_id)
                self._count(counted, node, passed_ms, is_down=is_down)
            self._counted[node.node_id] = counted
            if self._is_due(counted.down_ms, node.down_ms):
                due[node.node_id] = counted.down_ms
        return due

    def down_ms(self, node_id: str) -> int:
        """Return how long a node was DOWN since it was last steadily UP."""
        counted = self._counted.get(node_id)
        return counted.down_ms if counted is not None else 0

    def _count(
        self, counted: _Counted, node: meta_pb2.Node, passed_ms: int, *, is_down: bool
    ) -> None:
        if is_down:
            counted.down_ms += passed_ms
        if is_down or node.boot_id != counted.boot_id:
            counted.boot_id = node.boot_id
            counted.up_ms = 0
        elif node.state == meta_pb2.NODE_STATE_UP:
            counted.up_ms += passed_ms
            if counted.up_ms >= self._repair_delay_ms:
                counted.down_ms = 0

    def _now_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1_000)

    def _is_due(self, down_ms: int, written_ms: int) -> bool:
        """Whether a row is to be written: at most `_STEPS` times until the node counts as lost."""
        if down_ms < written_ms:
            return True
        is_step = down_ms - written_ms >= self._repair_delay_ms / _STEPS
        return is_step and written_ms < self._repair_delay_ms
