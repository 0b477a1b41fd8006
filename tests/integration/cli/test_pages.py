"""The blocks marked `console` of the pages, typed into a shell beside a standalone node.

A line that begins with `$ ` is a command, which must succeed; the lines after it are a part of its
output, in which ids may be others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.standalone import Standalone
from tests.repo.sources import ROOT, tracked

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ID = re.compile(r"\b[0-9A-F]{34}\b")
STORE = "posix:///mnt/backup"
DATA = ("/var/lib/strata", "build/data")
RESTORED = "/tmp/restored"
TIMEOUT_S = 60.0


def steps(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a page with the output that it shows of each."""
    found: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


PAGES = [page for page in tracked("*.md") if steps(page)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Standalone]:
    """A node of its own for each page, with a folder as its object store."""
    store = f"posix://{tmp_path}/store"
    standalone = Standalone(tmp_path / "data", options=["--tier", store])
    standalone.start()
    yield standalone
    standalone.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_can_be_typed(page: Path, node: Standalone, tmp_path: Path) -> None:
    """Every command succeeds and prints what the page says."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STRATA_ENDPOINT": node.endpoint,
        # Wide enough for the tables of a page.
        "COLUMNS": "160",
    }
    places = {STORE: f"posix://{tmp_path}/store", RESTORED: str(tmp_path / "restored")}
    places |= {name: str(node.data_dir) for name in DATA}
    for command, shown in steps(page):
        typed = command
        for name, place in places.items():
            typed = typed.replace(name, place)
        done = subprocess.run(
            ["sh", "-c", typed],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed = iter([plain(line) for line in done.stdout.splitlines()])
        # `in` consumes the iterator up to the line: the order counts.
        missing = [line for line in shown if plain(line) not in printed]
        assert missing == [], f"{command}\n{done.stdout}"


def plain(line: str) -> str:
    """Return a line without what differs from run to run: ids, and the width of columns."""
    return " ".join(_ID.sub("ID", line).split())


def test_pages_that_show_commands_are_found() -> None:
    """The pages with blocks for a shell are at least these."""
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    pages = ("backup", "clients", "install", "quickstart")
    assert names >= {"README.md", *(f"docs/{name}.md" for name in pages)}
