"""The parts that bound a node's log: rows are flushed, checkpoints written, segments freed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata_storage.base.jobs import NodeThreads
from strata_storage.base.node_data import NodeData
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.group.engine import GroupEngine
from strata_storage.upkeep.checkpointer import Checkpointer
from strata_storage.upkeep.flushes import RowFlushes
from strata_storage.upkeep.instruments import Instruments
from strata_storage.upkeep.reclaim import Reclaimer


class LogKeeping:
    """See the module docstring.

    Args:
        data: of the node.
        threads: of the node.
        runtime: of the node.
        instruments: counters.
        engines: returns the engines of all raft groups.

    Attributes:
        flushes: makes rows durable, so that the log need not be replayed.
        checkpointer: writes rows of a replica into the log, so that old entries may go.
        reclaimer: gives segments back to the disk.
    """

    def __init__(
        self,
        data: NodeData,
        threads: NodeThreads,
        runtime: NodeRuntime,
        *,
        instruments: Instruments,
        engines: Callable[[], Sequence[GroupEngine]],
    ) -> None:
        options = runtime.options
        self.flushes = RowFlushes(
            data.log,
            data.flusher,
            options.flush,
            clock=runtime.clock,
            instruments=instruments,
            engines=engines,
        )
        self.checkpointer = Checkpointer(
            data.log,
            options.retention,
            threads.read,
            on_written=lambda: instruments.checkpoints.add(1),
        )
        self.reclaimer = Reclaimer(
            data.log,
            options.retention,
            self.checkpointer,
            run_write=threads.write,
            run_read=threads.flush,
            instruments=instruments,
        )
