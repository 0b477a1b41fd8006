"""The parsed code lives as long as the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo import sources

_FOLDER = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Give the parsed code back after the last test that needs it.

    Millions of objects would be looked at after each of the modules that follow. No fixture does
    it: those of a package end with the session where folders have no `__init__.py`.
    """
    if nextitem is None or _FOLDER not in nextitem.path.parents:
        sources.forget()


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_open() -> None:
    """Look for no open sockets: a look goes through all of the parsed code, in every module."""
