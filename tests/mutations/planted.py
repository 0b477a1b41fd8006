"""Each mistake that is planted makes the tests that it names fail, in the way it names.

The tests pass without it: they run in `make test`. This module shows that they can fail.
`make mutations` runs this; `make mutations ARGS="-k NAME"` tries one.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.mutations.catalogue import MUTATIONS, ROOT
from tests.mutations.mutation import Mutation

LIMIT_S = 240
# A wait in vain ends after `strata_testing.waiting.LIMIT_S`; a test's own limit is longer.
TEST_LIMIT_S = 90
TESTS_FAILED = 1


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_found(mutation: Mutation) -> None:
    """The named tests fail, and say what the mistake must cause."""
    command = [sys.executable, "-m", "tests.mutations.plant", mutation.name, "-m", "pytest"]
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--timeout",
        str(TEST_LIMIT_S),
    ]
    done = subprocess.run(
        [*command, *options, *mutation.tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == TESTS_FAILED, f"{mutation.name} was not found\n{done.stdout[-2_000:]}"
    # The line that failed and what it said, not all of the test that pytest shows.
    said = "\n".join(line for line in done.stdout.splitlines() if line.startswith((">", "E ")))
    assert re.search(mutation.finds, said), done.stdout[-4_000:]
