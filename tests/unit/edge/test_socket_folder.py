"""Socket folders of dead servers go; those of the living stay."""

from __future__ import annotations

import socket
from pathlib import Path

from strata_edge.socket_folder import sweep

FAR_FUTURE_S = 4_000_000_000.0


def make(parent: Path, name: str) -> tuple[Path, socket.socket]:
    """Make a folder as an edge does, with a listening socket."""
    folder = parent / f"strata-edge-{name}"
    folder.mkdir(0o700)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(folder / "edge.sock"))
    server.listen()
    return folder, server


def test_only_the_dead_are_swept(tmp_path: Path) -> None:
    """A folder whose socket nobody serves goes; one that is served, and other things, stay."""
    living, server = make(tmp_path, "living")
    dead, killed = make(tmp_path, "dead")
    killed.close()
    (tmp_path / "strata-edge-file").touch()
    (tmp_path / "something-else").mkdir()
    assert sweep(tmp_path, FAR_FUTURE_S) == [dead]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "something-else",
        "strata-edge-file",
        living.name,
    ]
    server.close()


def test_the_young_are_left_alone(tmp_path: Path) -> None:
    """A server that is just starting keeps its folder although nobody accepts there yet."""
    folder = tmp_path / "strata-edge-young"
    folder.mkdir()
    made_s = folder.stat().st_mtime
    assert sweep(tmp_path, made_s + 4) == []
    assert sweep(tmp_path, made_s + 6) == [folder]


def test_a_parent_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    """There is nothing to sweep, and nothing fails."""
    assert sweep(tmp_path / "missing", FAR_FUTURE_S) == []
