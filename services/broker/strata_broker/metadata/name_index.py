"""Names in their order, so that a page of a list costs a page and not the whole list.

Names are kept in runs of bounded length, so that adding or removing one name moves a run and not
all names behind it. The index holds references to the keys, which the tables have anyway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile

Name = tuple[str, str]
"""(namespace, name)."""

_SEPARATOR = "\x00"
_RUN_NAMES = 1_024
"""A run that grows to twice this number of names becomes two runs."""


def key_of(name: Name) -> str:
    """Return a name as one text; texts sort as the names do, which never hold a zero character."""
    return f"{name[0]}\x00{name[1]}"


def name_of(key: str) -> Name:
    """Return the name of such a text."""
    namespace, _, name = key.partition(_SEPARATOR)
    return namespace, name


class NameIndex:
    """Names of topics or of consumer groups, by namespace and name."""

    __slots__ = ("_lasts", "_length", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        # The last key of each run.
        self._lasts: list[str] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: str) -> None:
        """Add a name, by its key, that is not there yet."""
        self._length += 1
        if not self._runs:
            self._runs.append([key])
            self._lasts.append(key)
            return
        if key > self._lasts[-1]:
            # So it is with the names of a snapshot.
            at, run = len(self._runs) - 1, self._runs[-1]
            run.append(key)
        else:
            at = bisect_left(self._lasts, key)
            run = self._runs[at]
            insort(run, key)
        if len(run) >= 2 * _RUN_NAMES:
            # Snapshots come in order: there the first run stays full and the rest is small.
            half = _RUN_NAMES if at < len(self._runs) - 1 else len(run) - 1
            self._runs.insert(at + 1, run[half:])
            self._lasts.insert(at + 1, run[-1])
            del run[half:]
        self._lasts[at] = run[-1]

    def remove(self, key: str) -> None:
        """Remove a name; nothing happens if it is not there."""
        at = bisect_left(self._lasts, key)
        if at == len(self._runs):
            return
        run = self._runs[at]
        place = bisect_left(run, key)
        if run[place] != key:
            return
        self._length -= 1
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

    def _from(self, bisect: Callable[[list[str], str], int], name: Name) -> Iterator[Name]:
        key = key_of(name)
        at = bisect(self._lasts, key)
        if at == len(self._runs):
            return iter(())
        run = self._runs[at]
        behind = islice(self._runs, at + 1, None)
        keys = chain(islice(run, bisect(run, key), None), chain.from_iterable(behind))
        return map(name_of, keys)
