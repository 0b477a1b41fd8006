"""Build the published files: wheel, source archive, chart, image, and their checksums.

    python scripts/make_dist.py FOLDER [--image] [--edge]

The image is built with Docker, which has to run; without `--image` it is left out. The wheel of the
native edge is built with cargo; without `--edge` it is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import helm_python

from strata_runtime.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
IMAGE = f"stratamq/strata:{VERSION}"
_WARNING = 2


def main() -> int:
    """Build all of it into one folder; the exit code says whether it is complete."""
    parser = argparse.ArgumentParser(description="Build what is published.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--image", action="store_true", help=f"build {IMAGE} with Docker, too")
    parser.add_argument("--edge", action="store_true", help="build the native edge's wheel, too")
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build_packages(folder)
    build_chart(folder)
    if given.edge:
        command = [sys.executable, "scripts/build_edge.py", "--wheel", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603 - our own
    if given.image:
        subprocess.run(  # noqa: S603 - our own arguments
            ["docker", "build", "-f", "images/Dockerfile", "-t", IMAGE, "."],  # noqa: S607 - whichever Docker is there
            cwd=ROOT,
            check=True,
        )
    write_checksums(folder)
    for path in sorted(folder.iterdir()):
        print(path.name, path.stat().st_size)
    return 0


def build_packages(folder: Path) -> None:
    """Build the wheel and the source archive; the same tree gives the same bytes."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)  # noqa: S603 - our own


def build_chart(folder: Path) -> None:
    """Lint and package the chart.

    Raises:
        SystemExit: the chart has a warning or an error.
    """
    chart = ROOT / "charts" / "strata"
    messages = [
        each
        for each in helm_python.lint(chart, strict=True)["messages"]
        if each["severity"] >= _WARNING
    ]
    if messages:
        raise SystemExit("\n".join(f"{each['path']}: {each['error']}" for each in messages))
    helm_python.package(chart, destination=folder, version=VERSION, app_version=VERSION)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
