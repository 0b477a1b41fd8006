"""`strata storage restore-replica`: what was removed from a folder comes back."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from strata_multiraft.replica.writes import removed_frame
from strata_seglog.log import CommitLog
from strata_seglog.put_aside import segments_of
from strata_seglog.real_disk import RealDisk
from strata_storage.base.config import StorageConfig
from strata_storage.base.removed_replicas import (
    AsideOptions,
    RemovedReplica,
    RemovedReplicas,
)
from tests.integration.cli.conftest import STRATA

if TYPE_CHECKING:
    from tests.integration.cli.conftest import StartNode


def strata(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STRATA, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def remove_all(data_dir: Path) -> list[RemovedReplica]:
    """Put all replicas of a stopped node aside, as another cluster's metadata once did."""
    storage = data_dir / "storage"
    cluster_id = json.loads((data_dir / "identity.json").read_text())["cluster_id"]
    aside = RemovedReplicas(storage / "removed", storage / "log", AsideOptions())
    log = CommitLog.open(
        RealDisk(storage / "log"), StorageConfig().log_options(), report=lambda corruption: None
    )
    removed = []
    for held in log.replicas().values():
        names = segments_of(log, held.replica_id)
        removed.append(
            RemovedReplica(
                *(held.replica_id, held.raft_group, cluster_id, 1, 1),
                *(held.first_index, held.last_index, held.term, held.vote, held.commit),
            )
        )
        aside.put(removed[-1], names)
        log.write_and_sync([removed_frame(held.replica_id, held.raft_group)])
    log.close()
    return removed


def test_a_node_whose_replicas_were_removed(start_node: StartNode) -> None:
    """Its start is one line that names the way back; after it every message is there."""
    node = start_node()
    node.json("topic", "create", "t")
    for number in range(8):
        node.json("message", "send", "t", "--body", f"body {number}")
    before = node.json("message", "query", "t")["messages"]
    assert node.stop()[0] == 0
    data_dir = str(node.data_dir)
    removed = remove_all(node.data_dir)
    assert len(removed) == 2

    failed = start_node()
    code, out, err = failed.process.wait(30), *failed.process.communicate()
    assert (code, out, err.count("\n")) == (1, "", 1), err
    first = removed[0].replica_id
    assert f"replica {first} was removed from this node" in err
    assert f"strata storage restore-replica {first} takes it back" in err

    listed = strata("storage", "restore-replica", "--data-dir", data_dir, "-o", "json")
    assert [each["replica_id"] for each in json.loads(listed.stdout)["replicas"]] == [
        each.replica_id for each in removed
    ]
    for each in removed:
        command = ("storage", "restore-replica", str(each.replica_id), "--data-dir", data_dir)
        done = json.loads(strata(*command, "-o", "json").stdout)
        assert done["restored_entries"] == each.last_index - each.first_index + 1
        assert json.loads(strata(*command, "-o", "json").stdout)["restored_entries"] == 0
    again = start_node()
    assert again.json("message", "query", "t")["messages"] == before
    used = strata("storage", "restore-replica", str(first), "--data-dir", data_dir)
    assert (used.returncode, used.stderr.count("\n")) == (1, 1)
    assert "is in use by process" in used.stderr


def test_what_is_not_there(tmp_path: Path) -> None:
    """One line for an empty folder and for an unknown replica."""
    empty = strata("storage", "restore-replica", "7", "--data-dir", str(tmp_path))
    assert (empty.returncode, empty.stderr) == (1, f"strata: {tmp_path} is not a data folder\n")
