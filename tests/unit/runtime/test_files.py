"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from strata_runtime.files import replace_file


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    """A configuration with secrets is not readable by others after a change."""
    file = tmp_path / "config.toml"
    file.write_text("old")
    file.chmod(mode)
    replace_file(file, b"new")
    assert (file.read_text(), mode_of(file)) == ("new", mode)
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_has_the_mode_that_is_asked_for(tmp_path: Path) -> None:
    """A key is its owner's alone; without a mode the umask decides, as for any file."""
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert mode_of(tmp_path / "key") == 0o600
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "open", b"text")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "open") == 0o640


def test_a_draft_of_an_earlier_crash_is_no_obstacle(tmp_path: Path) -> None:
    """Its content and its permissions are gone."""
    draft = tmp_path / "key.new"
    draft.write_text("a longer text that a crash left behind")
    draft.chmod(0o644)
    replace_file(tmp_path / "key", b"new", mode=0o600)
    assert (tmp_path / "key").read_bytes() == b"new"
    assert mode_of(tmp_path / "key") == 0o600


def test_what_cannot_be_written_leaves_the_old_content(tmp_path: Path) -> None:
    """The folder of the draft is a file."""
    file = tmp_path / "file"
    file.write_text("old")
    (tmp_path / "file.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(file, b"new")
    assert file.read_text() == "old"
