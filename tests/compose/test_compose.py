"""docker-compose.yml: valid by the specification, loopback only, what the code needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def test_compose_follows_the_specification() -> None:
    """Unknown keys and wrong types are refused by the Compose schema."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", str(COMPOSE)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    """An example on a laptop opens no port to the network."""
    for service in compose["services"].values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), port


def test_image_is_built_from_a_file_that_copies_existing_folders(compose: dict[str, Any]) -> None:
    """Every COPY source and every installed package folder of the Dockerfile exists."""
    dockerfile = ROOT / compose["services"]["strata"]["build"]["dockerfile"]
    text = dockerfile.read_text()
    copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY")]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
    installed = [word.removeprefix("/src/") for word in text.split() if word.startswith("/src/l")]
    installed += [word.removeprefix("/src/") for word in text.split() if word.startswith("/src/s")]
    packages = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/*/pyproject.toml")}
    needed = packages - {"libs/sim"}
    assert needed <= set(installed)
