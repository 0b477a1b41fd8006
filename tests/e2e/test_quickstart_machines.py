"""The commands of the quickstart for several machines bring up a cluster, as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.networks import OUTSIDE, missing, network
from tests.parts.required import absent

INSIDE = Path(__file__).with_name("inside_machines.py")
LIMIT_S = 300.0


@pytest.mark.timeout(LIMIT_S)
def test_the_page_starts_a_cluster() -> None:
    """`inside_machines` passes in a network and with names that nothing else uses."""
    if why := missing():
        absent(f"missing: {why}")
    inside = subprocess.run(
        [
            *("unshare", "--net", "--mount", sys.executable, "-m", "pytest", "-q", "-s"),
            *("-p", "no:cacheprovider", str(INSIDE)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, OUTSIDE: network()},
        timeout=LIMIT_S,
        check=False,
    )
    print(inside.stdout)
    assert inside.returncode == 0, inside.stdout + inside.stderr
