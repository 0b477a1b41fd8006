"""One version, one list of packages and one list of what they need, wherever they are written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
_OWN = "strata-"


def _project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _members() -> Iterator[dict[str, Any]]:
    for path in sorted(
        [*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
    ):
        yield _project(path)


def _names(requirements: list[str]) -> set[str]:
    """Names without versions and markers, those of our own packages left out."""
    names = {re.split(r"[\[<>=!; ]", each, maxsplit=1)[0] for each in requirements}
    return {name for name in names if not name.startswith(_OWN)}


def test_the_version_is_written_once() -> None:
    """Every package reads it from one file; the others are compared with it."""
    shared = [_project(ROOT / name / "pyproject.toml") for name in (".", "testing")]
    for project in [*shared, *_members()]:
        name = project["project"]["name"]
        assert "version" not in project["project"], name
        assert project["project"]["dynamic"] == ["version"], name
        assert project["tool"]["hatch"]["version"]["path"].endswith("strata_runtime/version.py"), (
            name
        )
    chart = (ROOT / "charts/strata/Chart.yaml").read_text()
    assert re.findall(r'^(?:version|appVersion): "?([^"\n]+)"?$', chart, re.M) == [VERSION, VERSION]
    native = ROOT / "libs/edge/native"
    assert _project(native / "Cargo.toml")["package"]["version"] == VERSION
    crates = tomllib.loads((native / "crates.lock").read_text())["package"]
    assert [each["version"] for each in crates if each["name"] == "strata_edge_native"] == [VERSION]
    compose = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"image: stratamq/\w+:(\S+)", compose)) == {VERSION}


def test_the_changelog_knows_the_version() -> None:
    """Its newest heading is this version, or what comes after it."""
    headings = re.findall(
        r"^## (?:\[)?(Unreleased|\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert headings, "no release in CHANGELOG.md"
    released = [heading for heading in headings if heading != "Unreleased"]
    assert VERSION in released[:1] or headings[0] == "Unreleased"


def test_the_wheel_holds_every_package() -> None:
    """A new folder under libs or services is in it; what tests are made of is not."""
    there = {
        f"{path.parent.parent.relative_to(ROOT)}/{path.parent.name}"
        for pattern in ("libs/*/*/py.typed", "services/*/*/py.typed")
        for path in ROOT.glob(pattern)
    }
    # The name by which Spark finds the data source.
    there.add("services/placement/pyspark_strata")
    targets = _project(ROOT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]
    assert set(targets["wheel"]["packages"]) == there


def test_the_wheel_asks_for_what_its_packages_ask_for() -> None:
    """Dependencies of the distribution are those of its packages; extras are the same, too."""
    root = _project(ROOT / "pyproject.toml")["project"]
    wanted: set[str] = set()
    extras: dict[str, set[str]] = {}
    for member in _members():
        project = member["project"]
        wanted |= _names(project["dependencies"])
        for extra, requirements in project.get("optional-dependencies", {}).items():
            extras.setdefault(extra, set()).update(_names(requirements))
    assert _names(root["dependencies"]) == wanted
    for extra in ("s3", "hdfs", "gs", "spark"):
        assert _names(root["optional-dependencies"][extra]) == extras[extra], extra
