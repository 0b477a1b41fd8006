"""The files of the repository, each read and parsed once for all tests of this folder."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked(*patterns: str) -> tuple[Path, ...]:
    """Return the files that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(
        ROOT / name for name in listing.stdout.split("\n") if name and (ROOT / name).is_file()
    )


@cache
def written_code(*folders: str) -> tuple[Path, ...]:
    """Return the Python files that people write: all, or those in some folders of the root."""
    generated = ("libs/proto/apache/", "libs/proto/strata/")
    return tuple(
        path
        for path in tracked("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(generated)
        and (not folders or name.partition("/")[0] in folders)
    )


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a Python file, in the order of `ast.walk`."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def forget() -> None:
    """Give the memory of parsed files back."""
    nodes_of.cache_clear()
