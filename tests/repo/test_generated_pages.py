"""Pages that come from code are fresh, and deployments set only keys that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from strata_cli.cluster_config import ClusterConfig
from strata_runtime.config import keys_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "configuration.md", "metrics.md"])
def test_page_is_what_the_code_says(generator: ModuleType, name: str) -> None:
    """`make docs` would change nothing."""
    assert (ROOT / "docs" / name).read_text() == generator.pages()[name]


def test_every_configuration_key_is_explained(generator: ModuleType) -> None:
    """No key of the configuration page has an empty meaning."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", generator.configuration(), re.MULTILINE)
    assert len(rows) > 30
    assert [key for key, meaning in rows if not meaning.strip()] == []


@pytest.mark.parametrize("name", ["docker-compose.yml", "charts/strata/templates/_helpers.tpl"])
def test_deployments_set_only_keys_that_exist(name: str) -> None:
    """Each STRATA_ variable of the chart and of the compose file overrides a real key."""
    known = {variable for _, _, variable in keys_of(ClusterConfig)}
    used = set(re.findall(r"\bSTRATA_\w+", (ROOT / name).read_text()))
    assert used
    assert used <= known
