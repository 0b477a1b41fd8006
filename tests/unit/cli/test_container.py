"""The container and the data folder of a standalone node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_cli.processes.container import Container
from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole
from strata_runtime.clock import SystemClock


class Recorder:
    """A member that writes down what happens to it."""

    def __init__(self, name: str, events: list[str], *, fails: bool = False) -> None:
        self.name = name
        self._events = events
        self._fails = fails

    async def start(self) -> None:
        if self._fails:
            raise OSError("port taken")
        self._events.append(f"start {self.name}")

    async def stop(self, grace_s: float) -> None:
        assert grace_s >= 1.0
        self._events.append(f"stop {self.name}")


async def test_members_stop_in_reverse_order() -> None:
    """A member that started last may need the earlier ones until it is stopped."""
    events: list[str] = []
    container = Container(SystemClock())
    for name in ("nameserver", "storage", "broker"):
        await container.add(name, Recorder(name, events))
    assert [info.name for info in container.list()] == ["nameserver", "storage", "broker"]
    await container.close(5.0)

    assert events == [
        *("start nameserver", "start storage", "start broker"),
        *("stop broker", "stop storage", "stop nameserver"),
    ]
    assert container.list() == []


async def test_a_member_can_be_removed_and_added_again() -> None:
    """Removing one leaves the others; its name is free again."""
    events: list[str] = []
    container = Container(SystemClock())
    await container.add("broker", Recorder("a", events))
    await container.add("broker", Recorder("b", events))
    await container.remove("a", 1.0)
    await container.add("broker", Recorder("a", events))

    assert [(info.name, info.kind) for info in container.list()] == [
        ("b", "broker"),
        ("a", "broker"),
    ]
    with pytest.raises(KeyError):
        await container.remove("c", 1.0)


async def test_what_cannot_be_added_is_not_held() -> None:
    """A failed start, a second member of a name and one too many leave the list as it was."""
    container = Container(SystemClock(), max_members=1)
    with pytest.raises(OSError, match="port taken"):
        await container.add("broker", Recorder("a", [], fails=True))
    await container.add("broker", Recorder("a", []))
    with pytest.raises(ValueError, match="named a is there already"):
        await container.add("broker", Recorder("a", []))
    with pytest.raises(ValueError, match="holds 1 members"):
        await container.add("broker", Recorder("b", []))

    assert [info.name for info in container.list()] == ["a"]


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    """Opening again gives the same ids; an emptied folder gets others (rule 8)."""
    first = DataFolder.open(tmp_path / "data", FolderRole.STANDALONE)
    first.close()
    again = DataFolder.open(tmp_path / "data", FolderRole.STANDALONE)
    again.close()
    (tmp_path / "data" / "identity.json").unlink()
    emptied = DataFolder.open(tmp_path / "data", FolderRole.STANDALONE)
    emptied.close()

    assert first.identity == again.identity
    assert emptied.identity.storage_node_id != first.identity.storage_node_id
    assert emptied.identity.metadata_replica_id != first.identity.metadata_replica_id
    assert 0 < emptied.identity.metadata_replica_id < 1 << 63


def test_a_folder_is_open_once(tmp_path: Path) -> None:
    """A second opening says who holds the folder; after a close it is free."""
    folder = DataFolder.open(tmp_path, FolderRole.STANDALONE)
    with pytest.raises(DataFolderError, match=r"is in use by process \d+"):
        DataFolder.open(tmp_path, FolderRole.STANDALONE)
    folder.close()
    DataFolder.open(tmp_path, FolderRole.STANDALONE).close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "is damaged"), ("[]", "is damaged"), ('{"cluster_id": "x"}', "is damaged")],
)
def test_a_damaged_identity_is_never_replaced(tmp_path: Path, text: str, reason: str) -> None:
    """New ids for old data would be another node's: the start fails instead."""
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(DataFolderError, match=reason):
        DataFolder.open(tmp_path, FolderRole.STANDALONE)
    assert (tmp_path / "identity.json").read_text() == text


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A folder of a later version is not touched."""
    DataFolder.open(tmp_path, FolderRole.STANDALONE).close()
    values = json.loads((tmp_path / "identity.json").read_text())
    (tmp_path / "identity.json").write_text(json.dumps(values | {"format_version": 2}))
    with pytest.raises(DataFolderError, match="format 2, this version reads 1"):
        DataFolder.open(tmp_path, FolderRole.STANDALONE)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """A path through a file is refused with the system's reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match="Not a directory"):
        DataFolder.open(tmp_path / "file" / "data", FolderRole.STANDALONE)
