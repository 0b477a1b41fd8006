"""One short run of the chaos suite: it works, and finds nothing.

`make chaos MINUTES=5` runs it for longer; STRATA_TEST_SEED replays a run.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import cluster
from tests.e2e import networks
from tests.parts.required import absent

MINUTES = "0.5"
LIMIT_S = 600.0


@pytest.mark.kill
@pytest.mark.timeout(LIMIT_S)
def test_a_short_run_is_clean(tmp_path: Path) -> None:
    """Faults at random under every kind of load: nothing is lost, doubled, early or reordered."""
    if why := networks.missing() or cluster.missing():
        absent(f"missing: {why}")
    seed = os.environ.get("STRATA_TEST_SEED", str(random.randrange(2**31)))
    print(f"STRATA_TEST_SEED={seed}")
    options = ["--minutes", MINUTES, "--seed", seed, "--folder", str(tmp_path / "chaos")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stderr, done.stdout)
    assert done.returncode == 0
    verdict = json.loads(done.stdout)
    assert verdict["violations"] == []
    for kind in ("sends", "acknowledged", "delayed", "transactions", "table_operations"):
        assert verdict["counts"][kind] > 0, kind
