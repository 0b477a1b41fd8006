"""The model of future loads: a JSON table, evaluated here, and the reasons not to use it.

The table gives, per raft group, the expected load by time of day:

    {"format": 1, "slot_ms": 3600000, "raft_groups": {"1": [120000.0, ...], ...}}

A list covers one day from midnight UTC in slots of `slot_ms`. The expected load of a node is the
sum over the raft groups that it leads. Measured loads alone count, and the reason is reported, when
there is no model, when it is out of date, cannot be read, or contradicts the loads measured now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2

FORMAT = 1
_DAY_MS = 86_400_000


class ModelError(ValueError):
    """A table that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    """A table.

    Attributes:
        slot_ms: length of a slot of the day.
        loads: bytes per second by raft group and slot.
    """

    slot_ms: int
    loads: Mapping[int, tuple[float, ...]]

    @classmethod
    def parse(cls, table: str) -> LoadModel:
        """Return what a table holds.

        Raises:
            ModelError: it is damaged or of another format.
        """
        try:
            document = json.loads(table)
            if document["format"] != FORMAT:
                raise ModelError(f"its format is {document['format']}, known is {FORMAT}")
            slot_ms = int(document["slot_ms"])
            loads = {
                int(number): tuple(map(float, slots))
                for number, slots in document["raft_groups"].items()
            }
        except (
            *(KeyError, TypeError, AttributeError, ValueError),
            # A number that no float holds; brackets in brackets.
            *(OverflowError, RecursionError),
        ) as error:
            raise ModelError(f"it cannot be read: {error}") from None
        if slot_ms <= 0 or _DAY_MS % slot_ms:
            raise ModelError(f"slots of {slot_ms} ms do not make a day")
        if any(len(slots) != _DAY_MS // slot_ms or min(slots) < 0 for slots in loads.values()):
            raise ModelError("a raft group's loads do not cover a day")
        if not all(math.isfinite(load) for slots in loads.values() for load in slots):
            raise ModelError("a load is not a finite number")
        if not math.isfinite(sum(max(slots) for slots in loads.values())):
            raise ModelError("the loads have no finite sum")
        return cls(slot_ms, loads)

    def expected(self, raft_group: int, now_ms: int) -> float:
        """Return a raft group's load in this slot or the next, whichever is higher."""
        slots = self.loads.get(raft_group)
        if slots is None:
            return 0.0
        slot = now_ms % _DAY_MS // self.slot_ms
        return max(slots[slot], slots[(slot + 1) % len(slots)])


@dataclass(frozen=True, slots=True)
class Outlook:
    """The weights that make the load of nodes, with their reasons.

    Attributes:
        loads: bytes per second, measured or, where that is more, expected.
        expected: by the model; empty: it is not in use.
        rule: for people.
    """

    loads: Mapping[str, float]
    expected: Mapping[str, float]
    rule: str


def outlook(
    measured: Mapping[str, float],
    row: meta_pb2.PlacementModel | None,
    raft_groups: Collection[int],
    leader_of: Callable[[int], str],
    now_ms: int,
    max_error: float,
) -> Outlook:
    """Return what to go by now.

    Args:
        measured: bytes per second of all nodes.
        row: the model in use; None: there is none.
        raft_groups: that exist.
        leader_of: node that leads a raft group; empty: not known.
        now_ms: wall time.
        max_error: a model is wrong when it puts more than this share of the load elsewhere.
    """
    if row is None:
        return Outlook(measured, {}, "measured loads count: there is no model")
    try:
        model = LoadModel.parse(row.table)
    except ModelError as error:
        return Outlook(measured, {}, f"measured loads count: model {row.version}: {error}")
    if now_ms > row.valid_until_ms:
        hours = (now_ms - row.valid_until_ms) / 3_600_000
        rule = f"measured loads count: model {row.version} is out of date since {hours:.1f} h"
        return Outlook(measured, {}, rule)
    expected = dict.fromkeys(measured, 0.0)
    for raft_group in raft_groups:
        leader = leader_of(raft_group)
        if leader in expected:
            expected[leader] += model.expected(raft_group, now_ms)
    misplaced = _misplaced(measured, expected)
    if misplaced > max_error:
        rule = f"measured loads count: model {row.version} puts {misplaced:.0%} of it elsewhere"
        return Outlook(measured, {}, rule)
    loads = {node: max(load, expected[node]) for node, load in measured.items()}
    rule = f"model {row.version} counts where it expects more than is measured"
    return Outlook(loads, expected, rule)


def _misplaced(measured: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Return the share of the expected load that is measured at other nodes; 0 without load."""
    all_measured, all_expected = sum(measured.values()), sum(expected.values())
    if not all_measured:
        return 0.0
    if not all_expected:
        return 1.0
    return 0.5 * sum(
        abs(load / all_measured - expected[node] / all_expected) for node, load in measured.items()
    )
