"""A process loads the tier that it is of: each start pays for what it loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_SHOWN = "import {}, json, sys; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize("role", ["nameserver", "storage"])
def test_a_process_loads_no_broker(role: str) -> None:
    """It knows the broker's configuration, since one file has all sections, and nothing more."""
    code = _SHOWN.format(f"strata_cli.processes.{role}")
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    broker = {name for name in loaded if name.startswith("strata_broker.")}
    assert broker
    assert {name.split(".")[1] for name in broker} == {"base"}
