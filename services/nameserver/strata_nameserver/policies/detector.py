"""Failure detection: who is up, from heartbeats and from what storage nodes hear of each other.

Soft state of the metadata leader; only transitions become rows. Choosing is separate from doing:
`judge` returns the transitions, the controller writes them.

Rules: a silent node is SUSPECT, then DOWN. A storage node is DOWN only when most storage nodes
that tell of it do not hear it either: one that is cut off from the nameserver alone serves on. They
tell of those with which they share raft groups; of one of which none tells no raft group is led by
a node that reports, and its silence is enough. While no storage node reports, no further one is
DOWN. Only a sign of life ends that: its own, or another node that hears it.
Nobody is judged before a full timeout has passed since this nameserver became leader, or since
its event loop stood still (what lies in the sockets comes first, rule 14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_runtime.clock import Clock

_LOAD_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class DetectorOptions:
    """Times of the detector.

    Attributes:
        suspect_after_s: silence that makes a node SUSPECT.
        down_after_s: silence that makes a node DOWN.
    """

    suspect_after_s: float
    down_after_s: float


class Transition(NamedTuple):
    """A node's state changes."""

    node_id: str
    state: meta_pb2.NodeState.ValueType
    reason: str


@dataclass(slots=True)
class _Heard:
    """Record of a node's heartbeats.

    `has_spoken`: it was really heard; a new leader only assumes it. `hears`: what a storage node
    says of others: True heard, False not. `load_bytes`: the mean of the bytes it appended and
    served between heartbeats.
    """

    at_s: float
    has_spoken: bool = False
    is_complete: bool = False
    hears: dict[str, bool] = field(default_factory=dict)
    load_bytes: float = 0.0


class FailureDetector:
    """Last signs of life per node.

    Args:
        options: times.
        clock: monotonic time.
    """

    def __init__(self, options: DetectorOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        self._quiet_until_s = clock.monotonic_s() + options.down_after_s

    def reset(self, node_ids: Iterable[str]) -> None:
        """Begin as the new leader: every node counts as heard now and must report in full."""
        now_s = self._clock.monotonic_s()
        self._heard = {node_id: _Heard(now_s) for node_id in node_ids}
        self._quiet_until_s = now_s + self._options.down_after_s

    def registered(self, node_id: str) -> None:
        """A node registered: all that was known of it is of an earlier boot."""
        self._heard[node_id] = _Heard(self._clock.monotonic_s(), has_spoken=True)

    def removed(self, node_id: str) -> None:
        """Forget a node."""
        self._heard.pop(node_id, None)

    def forgotten(self, node_id: str) -> None:
        """The reports of a node were forgotten: the answer to its heartbeat asks for all of them.

        A node whose process only stood still does not know that it was DOWN.
        """
        if (heard := self._heard.get(node_id)) is not None:
            heard.is_complete = False

    def heartbeat(self, request: meta_pb2.HeartbeatRequest) -> bool:
        """Note a heartbeat; return whether the next one must be complete."""
        heard = self._heard.setdefault(request.node_id, _Heard(0.0))
        heard.at_s = self._clock.monotonic_s()
        heard.has_spoken = True
        heard.is_complete |= request.full
        heard.hears = dict.fromkeys(request.heard_node_ids, True)
        heard.hears.update(dict.fromkeys(request.unheard_node_ids, False))
        if request.HasField("load"):
            load_bytes = request.load.appended_bytes + request.load.served_bytes
            heard.load_bytes += (load_bytes - heard.load_bytes) * _LOAD_WEIGHT
        return not heard.is_complete

    def is_silent(self, node_id: str) -> bool:
        """Tell whether a node is silent long enough to be SUSPECT."""
        return self._silence_s(node_id) >= self._options.suspect_after_s

    def is_heard(self, node_id: str) -> bool:
        """Tell whether a node has spoken lately; that a new leader assumes it is not enough."""
        heard = self._heard.get(node_id)
        return heard is not None and heard.has_spoken and not self.is_silent(node_id)

    def load_bytes(self, node_id: str) -> float:
        """Return the bytes a storage node appends and serves between two heartbeats, on average."""
        heard = self._heard.get(node_id)
        return heard.load_bytes if heard is not None else 0.0

    def judge(self, nodes: Mapping[str, meta_pb2.Node], lag_s: float) -> list[Transition]:
        """Return the nodes whose state is no longer that of their row.

        Args:
            nodes: all rows by node id.
            lag_s: how late the event loop runs.
        """
        now_s = self._clock.monotonic_s()
        if lag_s > self._options.suspect_after_s / 2:
            self._quiet_until_s = now_s + self._options.down_after_s
        for node_id in self._heard.keys() - nodes.keys():
            del self._heard[node_id]
        reports = self._reports(nodes)
        transitions = (self._transition(node, reports) for node in nodes.values())
        return [
            transition
            for transition in transitions
            if transition.state != nodes[transition.node_id].state
            and (transition.state == meta_pb2.NODE_STATE_UP or now_s >= self._quiet_until_s)
        ]

    def _silence_s(self, node_id: str) -> float:
        heard = self._heard.get(node_id)
        return self._clock.monotonic_s() - heard.at_s if heard is not None else float("inf")

    def _transition(
        self, node: meta_pb2.Node, reports: Sequence[Mapping[str, bool]] | None
    ) -> Transition:
        node_id = node.node_id
        # A row that came with another leader's last change: it is listened for from now on.
        heard = self._heard.setdefault(node_id, _Heard(self._clock.monotonic_s()))
        silence_s = self._silence_s(node_id)
        text = f"silent for {silence_s * 1000:.0f} ms"
        if silence_s < self._options.suspect_after_s:
            # Only a sign of life makes it UP; a new leader's patience does not.
            state = meta_pb2.NODE_STATE_UP if heard.has_spoken else node.state
            return Transition(node_id, state, "heard")
        if silence_s < self._options.down_after_s:
            # A node that was DOWN before comes up by a heartbeat only.
            state = max(node.state, meta_pb2.NODE_STATE_SUSPECT)
            return Transition(node_id, state, text)
        if node.kind == meta_pb2.NODE_KIND_STORAGE and reports is not None:
            hears = [report[node_id] for report in reports if node_id in report]
            is_heard = bool(hears) and 2 * hears.count(False) <= len(hears)
            is_known_down = node.state == meta_pb2.NODE_STATE_DOWN
            if is_heard or not (reports or is_known_down):
                text = f"{text}, heard by {hears.count(True)} of {len(hears)} storage nodes"
                return Transition(node_id, meta_pb2.NODE_STATE_SUSPECT, text)
        return Transition(node_id, meta_pb2.NODE_STATE_DOWN, text)

    def _reports(self, nodes: Mapping[str, meta_pb2.Node]) -> list[Mapping[str, bool]] | None:
        """Return what the storage nodes that report say of others; None: no node has peers.

        These are the same for all nodes that are judged by them: a silent node does not report.
        """
        storage = [
            node.node_id for node in nodes.values() if node.kind == meta_pb2.NODE_KIND_STORAGE
        ]
        if len(storage) < 2:
            return None
        return [self._heard[node_id].hears for node_id in storage if not self.is_silent(node_id)]
