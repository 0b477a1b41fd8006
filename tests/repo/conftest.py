"""The parsed code lives as long as the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.repo import sources


@pytest.fixture(scope="package", autouse=True)
def _parsed_code() -> Iterator[None]:
    yield
    sources.forget()


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_open() -> None:
    """Look for no open sockets: a look goes through all of the parsed code, in every module."""
