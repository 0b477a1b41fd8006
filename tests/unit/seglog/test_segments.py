"""Open files of segments: each is closed once, and never under somebody who reads it."""

from __future__ import annotations

from typing import Any

import pytest

from strata_seglog.segments import OpenFiles


class File:
    """Counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Files:
    """A disk that remembers what it opened."""

    def __init__(self) -> None:
        self.opened: dict[str, File] = {}

    def open(self, name: str, *, create: bool) -> File:
        assert not create
        return self.opened.setdefault(name, File())


def test_a_file_in_use_is_closed_by_its_user() -> None:
    """Its descriptor may be another file's as soon as it is closed."""
    disk: Any = Files()
    files = OpenFiles(disk, 10)
    with files.use("idle"):
        pass
    with files.use("read"):
        files.close()
        assert (disk.opened["idle"].closed, disk.opened["read"].closed) == (1, 0)
    assert (disk.opened["idle"].closed, disk.opened["read"].closed) == (1, 1)


def test_nothing_is_opened_after_the_end() -> None:
    """Nobody would close it."""
    disk: Any = Files()
    files = OpenFiles(disk, 10)
    files.close()
    with pytest.raises(OSError, match="the log is closed"), files.use("late"):
        pass
    assert disk.opened == {}
