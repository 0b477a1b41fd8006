"""The text of a test when something that it needs is not installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """Skip the test, or fail it when everything is required (STRATA_TEST_REQUIRE=all).

    Args:
        reason: what is missing and how to get it, in one line.
    """
    if os.environ.get("STRATA_TEST_REQUIRE") == "all":
        pytest.fail(reason)
    pytest.skip(reason)
