"""Names in their order, so that a page of a list costs a page and not the whole list.

Names are kept in runs of bounded length, so that adding or removing one name moves a run and not
all names behind it. The index holds references to the names, which the tables have anyway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile

Name = tuple[str, str]
"""(namespace, name)."""

_RUN_NAMES = 1_024
"""A run that grows to twice this number of names becomes two runs."""


class NameIndex:
    """Names of topics or of consumer groups, by namespace and name."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[Name]] = []
        # The last name of each run.
        self._lasts: list[Name] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, name: Name) -> None:
        """Add a name that is not there yet."""
        if not self._runs:
            self._runs.append([name])
            self._lasts.append(name)
            return
        at = min(bisect_left(self._lasts, name), len(self._runs) - 1)
        run = self._runs[at]
        insort(run, name)
        if len(run) >= 2 * _RUN_NAMES:
            # Snapshots come in order: there the first run stays full and the rest is small.
            half = _RUN_NAMES if at < len(self._runs) - 1 else len(run) - 1
            self._runs.insert(at + 1, run[half:])
            self._lasts.insert(at + 1, run[-1])
            del run[half:]
        self._lasts[at] = run[-1]

    def remove(self, name: Name) -> None:
        """Remove a name; nothing happens if it is not there."""
        at = bisect_left(self._lasts, name)
        if at == len(self._runs):
            return
        run = self._runs[at]
        place = bisect_left(run, name)
        if run[place] != name:
            return
        del run[place]
        if run:
            self._lasts[at] = run[-1]
        else:
            del self._runs[at], self._lasts[at]

    def after(self, name: Name) -> Iterator[Name]:
        """Return the names behind one, which need not be there; read it before names change."""
        return self._from(bisect_right, name)

    def starting_at(self, name: Name) -> Iterator[Name]:
        """Return the names from one on, which need not be there; read it before names change."""
        return self._from(bisect_left, name)

    def beginning_with(self, namespace: str, prefix: str) -> Iterator[Name]:
        """Return the names of a namespace that begin with a prefix; read it before names change."""
        return takewhile(
            lambda name: name[0] == namespace and name[1].startswith(prefix),
            self.starting_at((namespace, prefix)),
        )

    def _from(self, bisect: Callable[[list[Name], Name], int], name: Name) -> Iterator[Name]:
        at = bisect(self._lasts, name)
        if at == len(self._runs):
            return iter(())
        run = self._runs[at]
        behind = islice(self._runs, at + 1, None)
        return chain(islice(run, bisect(run, name), None), chain.from_iterable(behind))
