"""Runs a module with one mistake planted into our own code.

`python -m tests.mutations.plant NAME -m pytest ARGUMENTS` changes one place of one source file as
Python loads it; no file is touched. Mistakes are named in `catalogue.py`.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from tests.mutations.catalogue import BY_NAME, ROOT
from tests.mutations.mutation import Mutation


def plant(mutation: Mutation) -> None:
    """Let the file be loaded with the mistake in it.

    Raises:
        ValueError: the place is not there, or there more than once.
    """
    changed = changed_source(mutation).encode()
    path = str(ROOT / mutation.file)
    get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def planted_data(self: SourceFileLoader, asked: str) -> bytes:
        return changed if asked == path else get_data(self, asked)

    def planted_stats(self: SourceFileLoader, asked: str) -> object:
        if asked == path:
            # No cached bytecode: it has no mistake in it, and would get one.
            raise OSError(asked)
        return path_stats(self, asked)

    SourceFileLoader.get_data = planted_data  # type: ignore[method-assign, assignment]
    SourceFileLoader.path_stats = planted_stats  # type: ignore[method-assign, assignment]


def changed_source(mutation: Mutation) -> str:
    """Return the file with the mistake in it.

    Raises:
        ValueError: the place is not there, or there more than once.
    """
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    count = source.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has the place {count} times")
    return source.replace(mutation.old, mutation.new)


def main() -> None:
    """Plant and run."""
    name, dash_m, module, *arguments = sys.argv[1:]
    assert dash_m == "-m", __doc__
    sys.path.insert(0, str(Path.cwd()))
    plant(BY_NAME[name])
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
