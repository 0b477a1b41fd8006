"""`strata log repair`: gives up damaged entries in the CommitLogs of a stopped node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_cli.errors import CliError
from strata_cli.processes.data_folder import DataFolderError, locked
from strata_cli.views import View
from strata_seglog.errors import LogError
from strata_seglog.real_disk import RealDisk
from strata_seglog.verify import verify_log
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError, StateStore
from strata_state.rocksdb_store import RocksdbOptions, RocksdbStore
from strata_storage.upkeep.repair import RepairPlan, carry_out, plan_repair


def repair_log(path: Path, raft_group: int | None, *, changes: bool) -> View:
    """Plan the repair of one CommitLog, carry it out with `changes`, and return the result.

    Raises:
        CliError: the log cannot be repaired, or is in use.
    """
    with _failures(path), _lock_of(path), _rows_of(path) as store:
        disk = RealDisk(path)
        plan = plan_repair(disk, store, raft_group)
        if changes:
            carry_out(plan, disk, store)
        ok = plan.is_empty or (changes and verify_log(disk).ok)
        return {"path": str(path), "ok": ok} | _plan_view(plan)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except (LogError, StateError, DataFolderError) as error:
        raise CliError(f"{path}: {error}") from None
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from None


@contextmanager
def _lock_of(path: Path) -> Iterator[None]:
    """Hold the lock of a log's data folder; a copy outside a data folder needs no lock."""
    data_folder = path.resolve().parent.parent
    if (data_folder / "identity.json").is_file():
        with locked(data_folder):
            yield
    else:
        yield


@contextmanager
def _rows_of(path: Path) -> Iterator[StateStore]:
    """Open the rows that belong to a log, or an empty store if there are none."""
    folder = path.resolve().parent / "state"
    store: StateStore = MemoryStore()
    if folder.is_dir():
        store = RocksdbStore(folder, RocksdbOptions())
    try:
        yield store
    finally:
        store.close()


def _plan_view(plan: RepairPlan) -> View:
    return {
        "damaged": [
            {
                "segment": damage.segment,
                "position": damage.position,
                "end": damage.end,
                "reason": damage.reason,
                "may_hold_newest_of": list(damage.suspects),
            }
            for damage in plan.damages
        ],
        "footers": [segment.name for segment in plan.unsealed],
        "lost": [
            {
                "raft_group": each.raft_group,
                "index": each.index,
                "segment": each.segment,
                "position": each.position,
                "saved_messages": each.saved_messages,
                "lost_waiting": each.lost_waiting,
                "offsets_known": each.complete,
                "offsets": [lost._asdict() for lost in each.lost],
            }
            for each in plan.given_up
        ],
    }
