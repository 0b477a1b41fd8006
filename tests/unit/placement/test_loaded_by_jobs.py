"""Jobs load on Spark's own environment, which has few packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
JOBS = ROOT / "services" / "placement" / "strata_placement" / "jobs"
_CODE = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import {module}
"""


def names_in(lock: str) -> set[str]:
    """Return the packages of a lock file."""
    text = (ROOT / lock).read_text()
    return {name.lower().replace("-", "_") for name in re.findall(r"(?m)^([\w.-]+)==", text)}


@pytest.mark.parametrize("job", sorted(file.stem for file in JOBS.glob("*_rows.py")))
def test_what_spark_loads_is_installed_there(job: str) -> None:
    """The rows of a job, and the libraries behind them, need no package of a server alone."""
    missing = sorted(names_in("requirements.lock") - names_in("requirements-spark.lock"))
    assert "structlog" in missing
    code = _CODE.format(missing=missing, module=f"strata_placement.jobs.{job}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
