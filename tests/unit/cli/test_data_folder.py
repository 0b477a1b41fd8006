"""A data folder has one role and one cluster (rule 32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole
from tests.syncs import note_syncs


def identity_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "identity.json").read_text())
    return values


def made_by(role: FolderRole, path: Path) -> Path:
    """Return a folder that a process of a role has used."""
    DataFolder.open(path, role).close()
    return path


def old_format(path: Path, *inside: str, formed: bool = False) -> Path:
    """Return a folder from before folders knew their role; each had a cluster id of its own."""
    values = identity_of(made_by(FolderRole.STANDALONE, path))
    del values["role"]
    values["cluster_id"] = "random"
    values["initial_metadata_replica_ids"] = [values["metadata_replica_id"]] if formed else []
    (path / "identity.json").write_text(json.dumps(values))
    for name in inside:
        (path / name).mkdir(parents=True)
    return path


@pytest.mark.parametrize("role", list(FolderRole))
@pytest.mark.parametrize("other", list(FolderRole))
def test_a_folder_of_another_role_is_refused(
    tmp_path: Path, role: FolderRole, other: FolderRole
) -> None:
    """In one line, and nothing in it changes."""
    folder = made_by(role, tmp_path / "data")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    if role is other:
        DataFolder.open(folder, other).close()
    else:
        with pytest.raises(DataFolderError) as refused:
            DataFolder.open(folder, other)
        assert str(refused.value) == (
            f"data folder {folder} is that of a {role} process: {other} needs its own"
        )
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_only_a_standalone_node_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    """The others belong to none until nameservers take them in."""
    for role in FolderRole:
        folder = made_by(role, tmp_path / role)
        assert bool(identity_of(folder)["cluster_id"]) is (role is FolderRole.STANDALONE)


def test_a_folder_joins_one_cluster(tmp_path: Path) -> None:
    """It is written down once; another cluster is refused."""
    folder = DataFolder.open(tmp_path, FolderRole.STORAGE)
    folder.join("c1")
    folder.join("c1")
    with pytest.raises(DataFolderError, match="belongs to cluster c1, not c2"):
        folder.join("c2")
    folder.close()
    assert identity_of(tmp_path)["cluster_id"] == "c1"


def test_who_has_a_folder_open_is_written_when_it_is_the_right_one(tmp_path: Path) -> None:
    """A process that finds itself in the wrong cluster leaves even the lock's text as it was."""
    made_by(FolderRole.STORAGE, tmp_path)
    (tmp_path / "LOCK").write_text("1\n")
    folder = DataFolder.open(tmp_path, FolderRole.STORAGE)
    assert (tmp_path / "LOCK").read_text() == "1\n"
    folder.claim()
    assert int((tmp_path / "LOCK").read_text()) > 1
    folder.close()


@pytest.mark.parametrize(
    ("inside", "formed", "role", "cluster_id"),
    [
        (("nameserver", "storage"), False, FolderRole.STANDALONE, "random"),
        (("nameserver",), True, FolderRole.NAMESERVER, "random"),
        (("nameserver",), False, FolderRole.NAMESERVER, ""),
        (("storage",), False, FolderRole.STORAGE, ""),
        ((), False, FolderRole.BROKER, ""),
    ],
)
def test_a_folder_of_the_old_format_is_read(
    tmp_path: Path, inside: tuple[str, ...], formed: bool, role: FolderRole, cluster_id: str
) -> None:
    """Its role is what is in it; its cluster id counts where it was one."""
    folder = DataFolder.open(old_format(tmp_path, *inside, formed=formed), role)
    assert (folder.identity.role, folder.identity.cluster_id) == (role, cluster_id)
    folder.close()
    if inside:
        with pytest.raises(DataFolderError, match=f"is that of a {role} process"):
            DataFolder.open(tmp_path, FolderRole.BROKER)


def test_whether_a_storage_node_ever_wrote_is_seen_without_opening_its_log(tmp_path: Path) -> None:
    """A segment is zeros until its first frame."""
    folder = DataFolder.open(tmp_path, FolderRole.STORAGE)
    assert not folder.has_log()
    (folder.storage / "log").mkdir(parents=True)
    segment = folder.storage / "log" / f"{0:020d}.log"
    segment.write_bytes(bytes(4096))
    assert not folder.has_log()
    segment.write_bytes(b"SMQF" + bytes(4092))
    assert folder.has_log()
    folder.close()


def test_an_identity_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without its cluster's id would join any: the file is synced, then its name."""
    synced = note_syncs(monkeypatch)
    made_by(FolderRole.STORAGE, tmp_path / "data")
    assert synced == ["identity.json.new", "data"]
