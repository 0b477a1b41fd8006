"""Which slots a raft group owns (rule 17) and which of a topic's queues that makes its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from strata_mq.rare_commands import SlotGrant
from strata_mq.slots import SLOT_COUNT, slot_of

_CACHED_TOPICS_MAX = 10_000


class OwnedSlots:
    """A set of slots, changed by OWN commands only."""

    __slots__ = ("_flags", "_queues")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._flags = bytearray(SLOT_COUNT)
        # (slot base, queue count) -> the owned ones of queues 0 .. queue count - 1.
        self._queues: OrderedDict[tuple[int, int], Sequence[int]] = OrderedDict()
        for first, count in runs:
            self._flags[first : first + count] = b"\x01" * count

    def __bool__(self) -> bool:
        return any(self._flags)

    def change(self, grants: Iterable[SlotGrant]) -> None:
        """Take in granted and revoked runs of slots."""
        for first, count, granted in grants:
            assert first + count <= SLOT_COUNT, f"slots {first}..{first + count} do not exist"
            self._flags[first : first + count] = (b"\x01" if granted else b"\x00") * count
        self._queues.clear()

    def runs(self) -> list[tuple[int, int]]:
        """Return the owned slots as (first, count) runs."""
        runs: list[tuple[int, int]] = []
        for slot, owned in enumerate(self._flags):
            if not owned:
                continue
            if runs and sum(runs[-1]) == slot:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((slot, 1))
        return runs

    def owns(self, slot_base: int, queue: int) -> bool:
        """Whether a queue's slot is owned."""
        return bool(self._flags[slot_of(slot_base, queue)])

    def queues(self, slot_base: int, queue_count: int) -> Sequence[int]:
        """Return the owned queues of a topic, in order."""
        key = (slot_base, queue_count)
        queues = self._queues.get(key)
        if queues is None:
            queues = tuple(queue for queue in range(queue_count) if self.owns(slot_base, queue))
            self._queues[key] = queues
            if len(self._queues) > _CACHED_TOPICS_MAX:
                self._queues.popitem(last=False)
        return queues
