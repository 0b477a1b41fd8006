"""The files that `make dist` builds are whole: installed outside the repository, they run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from strata_runtime.version import VERSION
from tests.integration.cli.conftest import Node
from tests.parts.required import absent

ROOT = Path(__file__).resolve().parents[3]
# With it a wheel of the native edge takes seconds; without it cargo compiles all crates.
COMPILED = ROOT / "build" / "edge" / "release"
HAS_EDGE = COMPILED.is_dir() and shutil.which("cargo") is not None

# The first test waits until everything is built: a minute and more on a busy machine.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the image, which needs Docker; the native edge where it was built here."""
    folder = tmp_path_factory.mktemp("dist")
    script = str(ROOT / "scripts" / "make_dist.py")
    edge = ["--edge"] if HAS_EDGE else []
    subprocess.run([sys.executable, script, str(folder), *edge], check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `bin` of a fresh environment into which pip installed the wheels."""
    home = tmp_path_factory.mktemp("fresh") / "environment"
    venv.create(home, with_pip=True)
    wheels = [str(each) for each in sorted(dist.glob("*.whl"))]
    pip = [str(home / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", *wheels], check=True, timeout=120)
    [packages] = home.glob("lib/python*/site-packages")
    # Other people's packages; a plain path in a .pth file brings no editable installations along.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a test where no repository is: neither the working folder nor PYTHONPATH has one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def test_the_checksums_are_those_of_the_files(dist: Path) -> None:
    """`sha256sum --check` is what a user runs; every file has one."""
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=dist,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.split("  ")[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    assert names == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    assert names >= {
        f"strata-{VERSION}.tgz",
        f"stratamq-{VERSION}-py3-none-any.whl",
        f"stratamq-{VERSION}.tar.gz",
    }


def test_the_wheel_of_the_native_edge_is_beside_them(dist: Path) -> None:
    """It has the same version, and one wheel serves Python 3.11 and newer."""
    if not HAS_EDGE:
        absent("the native edge was not built here: make edge (needs cargo)")
    [wheel] = dist.glob("strata_edge_native-*.whl")
    assert wheel.name.startswith(f"strata_edge_native-{VERSION}-cp311-abi3-linux_")


def test_the_chart_has_the_version(dist: Path) -> None:
    """Chart and image tag are those of the wheel."""
    with tarfile.open(dist / f"strata-{VERSION}.tgz") as archive:
        chart = archive.extractfile("strata/Chart.yaml")
        assert chart is not None
        text = chart.read().decode()
    assert f"version: {VERSION}" in text
    assert f"appVersion: {VERSION}" in text.replace('"', "")


def test_the_source_archive_has_what_the_wheel_is_built_from(dist: Path) -> None:
    """Packages, protos, the source of the native edge and the licence; nothing that was built."""
    with tarfile.open(dist / f"stratamq-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "libs/runtime/strata_runtime/version.py",
        "services/cli/strata_cli/main.py",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".so")]


def test_the_wheels_run_where_no_repository_is(programs: Path, elsewhere: Path) -> None:
    """Only what they name as dependencies is beside them: messages go out and come back."""

    def strata(*arguments: str) -> str:
        done = subprocess.run(
            [str(programs / "strata"), *arguments],
            env=os.environ.copy(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert strata("--version").strip() == VERSION
    assert "All 3 messages came back." in strata("demo", "--once")


def test_a_standalone_node_of_the_wheels_starts(programs: Path, elsewhere: Path) -> None:
    """It serves over the native edge where that wheel is, and ends cleanly."""
    program = [str(programs / "strata")]
    node = Node(elsewhere / "data", environment={}, program=program)
    try:
        # Else it is the grpcio of the packages beside it, or their native edge.
        assert not HAS_EDGE or " edge=native " in node.ready_line, node.ready_line
        assert node.json("cluster", "show")["nodes"]
    finally:
        code, out, err = node.stop(signal.SIGTERM)
    assert (code, out, err) == (0, "", "")
