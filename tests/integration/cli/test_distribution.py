"""The files that `make dist` builds are whole: installed outside the repository, they run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from strata_runtime.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything but the image, which needs Docker."""
    folder = tmp_path_factory.mktemp("dist")
    script = str(ROOT / "scripts" / "make_dist.py")
    subprocess.run([sys.executable, script, str(folder)], check=True, timeout=300)
    return folder


def test_the_checksums_are_those_of_the_files(dist: Path) -> None:
    """`sha256sum --check` is what a user runs."""
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
    assert names == {
        f"strata-{VERSION}.tgz",
        f"stratamq-{VERSION}-py3-none-any.whl",
        f"stratamq-{VERSION}.tar.gz",
    }


def test_the_chart_has_the_version(dist: Path) -> None:
    """Chart and image tag are those of the wheel."""
    with tarfile.open(dist / f"strata-{VERSION}.tgz") as archive:
        chart = archive.extractfile("strata/Chart.yaml")
        assert chart is not None
        text = chart.read().decode()
    assert f"version: {VERSION}" in text
    assert f"appVersion: {VERSION}" in text.replace('"', "")


def test_the_wheel_runs_where_no_repository_is(dist: Path, tmp_path: Path) -> None:
    """Only what it names as dependencies is beside it: messages go out and come back."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    [packages] = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(dist / f"stratamq-{VERSION}-py3-none-any.whl") as wheel:
        wheel.extractall(packages)
    # Other people's packages; a plain path in a .pth file brings no editable installations along.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def strata(*arguments: str) -> str:
        command = "import sys; from strata_cli.main import main; main()"
        done = subprocess.run(
            [str(home / "bin" / "python"), "-c", command, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert strata("--version").strip() == VERSION
    assert "All 3 messages came back." in strata("demo", "--once")
