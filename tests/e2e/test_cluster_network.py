"""A storage node whose network is cut and comes back: nothing acknowledged is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.networks import OUTSIDE, missing, network
from tests.parts.required import absent

INSIDE = Path(__file__).with_name("inside_network.py")
LIMIT_S = 3_000.0


@pytest.mark.kill
@pytest.mark.timeout(LIMIT_S)
def test_cut_of_a_leader_node() -> None:
    """The scenario of `inside_network` passes in a network namespace that nothing else uses."""
    if why := missing():
        absent(f"missing: {why}")
    inside = subprocess.run(
        [
            *("unshare", "--net", sys.executable, "-m", "pytest", "-q", "-s"),
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
