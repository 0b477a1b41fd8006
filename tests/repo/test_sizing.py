"""scripts/sizing.py: estimates follow docs/performance.md and are the same in two languages."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from types import ModuleType

import pytest

from tests.parts.required import absent
from tests.repo.sources import ROOT

SCRIPT = ROOT / "docs/calculator/sizing.js"


@pytest.fixture(scope="module")
def sizing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sizing", ROOT / "scripts/sizing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["sizing"] = module
    spec.loader.exec_module(module)
    return module


def test_cpu_is_that_of_the_page_on_performance(sizing: ModuleType) -> None:
    """Single sends without consumers cost 164 us on each replica and 134 us on a broker."""
    load = sizing.Load(messages_per_s=1_000, peak_factor=1, consumer_groups=0)
    alone = sizing.estimate(load, sizing.Machines(), sizing.Prices())
    assert alone.storage_cores_used == pytest.approx(3 * 0.164)
    assert alone.broker_cores_used == pytest.approx(0.134)
    load = replace(load, messages_per_request=32)
    batched = sizing.estimate(load, sizing.Machines(), sizing.Prices())
    assert batched.storage_cores_used == pytest.approx(3 * 0.0285, rel=0.01)
    assert batched.broker_cores_used == pytest.approx(0.021, rel=0.01)


def test_a_small_load_gets_the_smallest_cluster(sizing: ModuleType) -> None:
    """Three replicas need three machines, and two brokers outlive each other."""
    small = sizing.estimate(sizing.Load(messages_per_s=1), sizing.Machines(), sizing.Prices())
    assert (small.storage_nodes, small.brokers) == (3, 2)
    assert small.disk_gb_per_node > 0.785


def test_retention_on_disks_adds_storage_nodes(sizing: ModuleType) -> None:
    """Disks are never planned fuller than their share; a tier takes the messages from them."""
    machines, prices = sizing.Machines(disk_gb=500), sizing.Prices()
    load = sizing.Load(messages_per_s=2_000, retention_h=24 * 14)
    local = sizing.estimate(load, machines, prices)
    assert local.disk_gb_per_node <= 500 * sizing.DISK_SHARE_MAX
    tiered = sizing.estimate(replace(load, tier=True), machines, prices)
    assert tiered.storage_nodes < local.storage_nodes
    assert tiered.store_gb == pytest.approx(2_000 * 1_470 * 24 * 14 * 3_600 / 1e9)
    assert tiered.cost_month < local.cost_month
    assert local.puts_month == local.gets_month == local.store_gb == 0


def test_an_idle_tier_flushes_by_age_and_a_busy_one_by_size(sizing: ModuleType) -> None:
    """The number of requests has a floor: an object of each raft group every 30 s."""
    machines, prices = sizing.Machines(), sizing.Prices()
    idle = sizing.estimate(sizing.Load(messages_per_s=1, tier=True), machines, prices)
    assert idle.puts_month == pytest.approx(6 * 2 * 60 * 24 * 30 * 7)
    load = sizing.Load(messages_per_s=50_000, body_bytes=4_000, messages_per_request=32, tier=True)
    busy = sizing.estimate(load, machines, prices)
    month_bytes = 50_000 * 4_470 * 30 * 86_400
    assert busy.puts_month == pytest.approx(7 * month_bytes / sizing.OBJECT_BYTES)


def test_one_zone_costs_no_traffic(sizing: ModuleType) -> None:
    """Traffic between zones needs zones."""
    one = sizing.estimate(sizing.Load(), sizing.Machines(zones=1), sizing.Prices())
    three = sizing.estimate(sizing.Load(), sizing.Machines(zones=3), sizing.Prices())
    assert one.zone_gb_month == 0
    assert three.zone_gb_month > 0


def test_the_calculator_of_the_page_gives_the_same(sizing: ModuleType) -> None:
    """Both languages have the same inputs, defaults and results."""
    node = shutil.which("node")
    if node is None:
        absent("Node is missing: install Node 20 or newer")
    cases = [{}, {"tier": True, "local_retention_h": 6, "zones": 1, "messages_per_request": 32}]
    cases += [{"messages_per_s": 30_000, "consumer_groups": 4, "retention_h": 200, "replicas": 5}]
    program = (
        f"const s = require({json.dumps(str(SCRIPT))});"
        f"const all = {json.dumps(cases)}.map((c) => s.estimate({{...s.DEFAULTS, ...c}}));"
        "console.log(JSON.stringify([s.DEFAULTS, all]));"
    )
    ran = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True)
    defaults, results = json.loads(ran.stdout)
    kinds = (sizing.Load, sizing.Machines, sizing.Prices)
    assert defaults == {name: value for kind in kinds for name, value in asdict(kind()).items()}
    for case, result in zip(cases, results, strict=True):
        given = [
            kind(**{name: value for name, value in case.items() if hasattr(kind, name)})
            for kind in kinds
        ]
        expected = asdict(sizing.estimate(*given))
        assert result.keys() == expected.keys()
        for name, value in expected.items():
            assert math.isclose(result[name], value, rel_tol=1e-9), name


def test_the_calculator_fetches_nothing() -> None:
    """The page has one script, beside it."""
    page = (SCRIPT.parent / "index.html").read_text()
    assert page.count("src=") == 1
    assert 'src="sizing.js"' in page
    assert "http" not in page + SCRIPT.read_text()


def test_the_command_prints_json() -> None:
    """`python scripts/sizing.py` takes every field as an option."""
    command = [sys.executable, "scripts/sizing.py", "--messages-per-s", "10", "--tier"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["storage_nodes"] == 3
