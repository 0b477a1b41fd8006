"""No file imports a file that imports it, not even for types: each can be read by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.repo.sources import ROOT, nodes_of, written_code


def modules() -> dict[str, Path]:
    """Return the modules of packages under libs, services and testing, by their names."""
    found = {}
    for path in written_code():
        parts = path.relative_to(ROOT).with_suffix("").parts
        depth = {"libs": 2, "services": 2, "testing": 1}.get(parts[0])
        if depth is not None:
            found[".".join(parts[depth:]).removesuffix(".__init__")] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it."""
    for each in nodes_of(path):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module:
            names = {f"{each.module}.{alias.name}" for alias in each.names}
            yield from names & known.keys()
            if names - known.keys():
                yield each.module


def test_no_file_imports_a_file_that_imports_it() -> None:
    """Two files that need types of each other share a port in a third file."""
    known = modules()
    assert len(known) > 500, "where is the code?"
    graph = {
        name: {each for each in imported(path, known) if each in known and each != name}
        for name, path in known.items()
    }
    circle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        circle = found.args[1]
    assert circle == []
