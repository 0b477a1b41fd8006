"""Each mistake that is planted makes the tests that it names fail, in the way it names.

The tests pass without it: they run in the same suite. What is shown here is that they can fail.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.mutations.catalogue import MUTATIONS, ROOT, Mutation
from tests.mutations.plant import changed_source

LIMIT_S = 240
TESTS_FAILED = 1


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_place_is_still_there(mutation: Mutation) -> None:
    """The code has the line that is to be changed exactly once, and is valid with the mistake."""
    compile(changed_source(mutation), mutation.file, "exec")


@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_found(mutation: Mutation) -> None:
    """The named tests fail, and say what the mistake must cause."""
    command = [sys.executable, "-m", "tests.mutations.plant", mutation.name, "-m", "pytest"]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "60"]
    done = subprocess.run(
        [*command, *options, *mutation.tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == TESTS_FAILED, f"{mutation.name} was not found\n{done.stdout[-2_000:]}"
    assert re.search(mutation.finds, done.stdout), done.stdout[-4_000:]
