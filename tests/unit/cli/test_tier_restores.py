"""A restore that does not end: nothing starts in a folder that holds a part of what was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strata_cli.commands import tier_restore
from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole
from strata_tier.upkeep import Restore

EMPTY = Restore("home", "metadata/1.rows", (), 0, ())


def whole(path: Path) -> None:
    """Restore a standalone node."""
    tier_restore.write_data_folder(EMPTY, path, None).close()


def split(path: Path) -> None:
    """Restore a nameserver and a storage node."""
    tier_restore.write_split_folders(EMPTY, path, None)


@pytest.mark.parametrize(
    ("write", "roles"),
    [
        (whole, {".": FolderRole.STANDALONE}),
        (split, {"nameserver": FolderRole.NAMESERVER, "storage": FolderRole.STORAGE}),
    ],
)
@pytest.mark.parametrize("step", ["_write_metadata", "write_log"])
def test_nothing_starts_in_a_folder_that_is_not_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], None],
    roles: dict[str, FolderRole],
    step: str,
) -> None:
    """Raft groups that are missing would begin without their messages."""

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    data = tmp_path / "data"
    with monkeypatch.context() as patched:
        patched.setattr(tier_restore, step, full)
        with pytest.raises(OSError, match="No space left"):
            write(data)
    for name, role in roles.items():
        with pytest.raises(DataFolderError, match="a restore into it has not ended"):
            DataFolder.open(data / name, role)
    again = tmp_path / "again"
    write(again)
    for name, role in roles.items():
        DataFolder.open(again / name, role).close()
