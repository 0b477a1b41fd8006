"""`strata storage`: runs a storage node, and works on the folder of a stopped one."""

# ruff: noqa: D417

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from cyclopts import App

from strata_cli.commands.run import storage
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View

app = App(name="storage")
app.default(storage)


@app.command(name="restore-replica")
def restore_replica(
    replica_id: int | None = None, /, *, data_dir: Path, common: Common = COMMON
) -> None:
    """Restore a replica that was removed from a storage node; the node must be stopped.

    A removed replica is kept for a while (storage.removed_replica_retention_ms). A restored
    replica is unchanged; the node hosts it once the metadata places it there, and keeps it until
    then. Without a replica id the command lists the replicas that are kept.

    For instance: strata storage restore-replica 17 --data-dir /var/lib/strata

    Args:
        replica_id: Id of the replica to restore.
        data_dir: Data folder of the storage node.
    """
    from strata_cli.processes.data_folder import identity_of, locked
    from strata_seglog.errors import LogError
    from strata_storage.base.config import StorageConfig
    from strata_storage.base.removed_replicas import RemovedReplica, RemovedReplicaError
    from strata_storage.upkeep import restore_replica as restoring

    def view(replica: RemovedReplica) -> View:
        left_out = ("term", "vote", "commit", "version", "is_back")
        return {key: value for key, value in asdict(replica).items() if key not in left_out}

    identity = identity_of(data_dir)
    storage_folder = data_dir / "storage"
    if replica_id is None:
        replicas = [view(each) for each in restoring.removed_replicas(storage_folder)]
        show({"replicas": replicas}, common, rows="replicas")
        return
    try:
        with locked(data_dir):
            restored = restoring.restore_replica(
                storage_folder, replica_id, identity.cluster_id, StorageConfig().log_options()
            )
    except (RemovedReplicaError, LogError) as error:
        raise CliError(f"{data_dir}: {error}") from None
    except OSError as error:
        raise CliError(f"{data_dir}: {error.strerror or error}") from None
    show(view(restored.replica) | {"restored_entries": restored.entries}, common)
