"""The places of a storage node's data: its log, its rows, and what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass

from strata_seglog.ballast import Ballast
from strata_seglog.log import CommitLog
from strata_seglog.ports import Disk
from strata_state.flush import Flusher
from strata_state.ports import StateStore
from strata_storage.base.removed_replicas import RemovedReplicas


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeData:
    """See the module docstring.

    Attributes:
        log: entries of all replicas.
        disk: the folder of the log.
        store: rows of all replicas.
        flusher: makes rows durable.
        ballast: file that is deleted when the disk is almost full; None: there is none.
        aside: where removed replicas are put; None: nowhere, they are deleted.
    """

    log: CommitLog
    disk: Disk
    store: StateStore
    flusher: Flusher
    ballast: Ballast | None = None
    aside: RemovedReplicas | None = None
