"""Contents of a storage node's heartbeat to the nameserver: led raft groups, peers heard, load.

Led raft groups are sent as changes since the last heartbeat; `full` asks for all of them again. A
led raft group is sent again when its term, its membership, the set of caught-up replicas or the
revision that it fulfils changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strata.meta.v1 import meta_pb2 as meta
from strata_multiraft import Replica
from strata_raft import Configuration
from strata_runtime.clock import Clock
from strata_storage.upkeep.damage import damaged_replicas
from strata_storage.upkeep.instruments import Instruments


class Measured(Protocol):
    """The part of the storage node that is needed."""

    instruments: Instruments

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""

    def membership(self, raft_group: int) -> tuple[int, Configuration]:
        """Return (index, configuration) of a hosted raft group as committed and applied."""

    def log_bytes(self) -> tuple[int, int]:
        """Return (bytes on disk, bytes ever appended) of the log."""

    def disk_bytes(self) -> tuple[int, int]:
        """Return (free, total) bytes of the log's disk."""


class _Led(NamedTuple):
    """The facts of a led raft group that a heartbeat tells."""

    term: int
    configuration_index: int
    configuration: Configuration
    caught_up: tuple[int, ...]
    settled_revision: int


@dataclass(frozen=True, slots=True)
class HeartbeatSources:
    """Parts of a node that say something in its heartbeats; one that is not there says nothing.

    Attributes:
        refused: gives replicas that could not be hosted: only others can take their place.
        settled: gives the revision of the row that a raft group led in a term fulfils, 0: not yet.
        clock_is_off: tells whether this node's clock keeps it from leading (rule 4).
        answer_latencies: gives by storage node how long its answers took, in ms, since the last
            heartbeat.
        health: gives the state that the node reports of itself.
    """

    refused: Callable[[], Sequence[int]] = tuple
    settled: Callable[[int, int], int] = lambda raft_group, term: 0
    clock_is_off: Callable[[], bool] = lambda: False
    answer_latencies: Callable[[], Mapping[str, float]] = dict
    health: Callable[[], meta.StorageHealth] = meta.StorageHealth


class Heartbeats:
    """Makes heartbeats; see the module docstring.

    Args:
        node_id, boot_id: of this node.
        node: what is told about.
        heard_nodes: gives storage nodes that are heard and those that are not.
        clock: wall time.
        sources: say what the node itself does not know.
    """

    def __init__(
        self,
        node_id: str,
        boot_id: int,
        node: Measured,
        *,
        heard_nodes: Callable[[], tuple[Sequence[str], Sequence[str]]],
        clock: Clock,
        sources: HeartbeatSources | None = None,
    ) -> None:
        self._node_id = node_id
        self._boot_id = boot_id
        self._node = node
        self._heard_nodes = heard_nodes
        self._clock = clock
        self._sources = sources or HeartbeatSources()
        self._told: dict[int, _Led] = {}
        self._appended_before = node.log_bytes()[1]
        self._served_before = 0
        self._led_before = 0

    def make(self, full: bool) -> meta.HeartbeatRequest:
        """Return the next heartbeat.

        Args:
            full: the receiver knows nothing: tell all that is led.
        """
        led = self._led()
        told = {} if full else self._told
        heard, unheard = self._heard_nodes()
        request = meta.HeartbeatRequest(
            node_id=self._node_id,
            boot_id=self._boot_id,
            wall_ms=self._clock.wall_ms(),
            full=full,
            led=[
                _led_group(raft_group, each)
                for raft_group, each in led.items()
                if told.get(raft_group) != each
            ],
            led_no_longer=[raft_group for raft_group in told if raft_group not in led],
            heard_node_ids=heard,
            unheard_node_ids=unheard,
            load=self._load(),
            damaged_replica_ids=[
                *damaged_replicas(self._node.replicas()),
                *self._sources.refused(),
            ],
            clock_is_off=self._sources.clock_is_off(),
            health=self._sources.health(),
        )
        self._told = led
        return request

    def _led(self) -> dict[int, _Led]:
        return {
            raft_group: _Led(
                replica.term,
                # Only what is committed is true for good.
                *self._node.membership(raft_group),
                (
                    replica.replica_id,
                    *(
                        progress.replica_id
                        for progress in replica.progress()
                        if replica.caught_up(progress.replica_id)
                    ),
                ),
                self._sources.settled(raft_group, replica.term),
            )
            for raft_group, replica in self._node.replicas().items()
            if replica.is_ready_leader()
        }

    def _load(self) -> meta.StorageLoad:
        log_bytes, appended = self._node.log_bytes()
        free, total = self._node.disk_bytes()
        instruments = self._node.instruments
        served, led = instruments.served_bytes_total, instruments.led_bytes_total
        load = meta.StorageLoad(
            disk_free_bytes=free,
            disk_total_bytes=total,
            log_bytes=log_bytes,
            appended_bytes=appended - self._appended_before,
            served_bytes=served - self._served_before,
            append_latency_ms=instruments.take_append_latency_ms(),
            replicas=len(self._node.replicas()),
            led_bytes=led - self._led_before,
            sync_latency_ms=instruments.take_sync_latency_ms(),
            answers=[
                meta.PeerAnswers(node_id=node_id, latency_ms=latency_ms)
                for node_id, latency_ms in self._sources.answer_latencies().items()
            ],
        )
        self._appended_before, self._served_before, self._led_before = appended, served, led
        return load


def _led_group(raft_group: int, led: _Led) -> meta.LedGroup:
    configuration = led.configuration
    return meta.LedGroup(
        raft_group=raft_group,
        term=led.term,
        membership=meta.Membership(
            configuration_index=led.configuration_index,
            voters=sorted(configuration.voters),
            learners=sorted(configuration.learners),
            outgoing=sorted(configuration.outgoing),
        ),
        caught_up=led.caught_up,
        settled_revision=led.settled_revision,
    )
