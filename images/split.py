"""Split an environment into the layers of the images: a build step, with no package of ours.

    python split.py ENVIRONMENT FOLDER

FOLDER/common gets the environment with what every process needs: the requirements of the
distribution `stratamq`. Its extras for object stores go to FOLDER/storage, and the native edge to
FOLDER/broker, each under the path of the environment, so that an image copies `common` and what it
needs besides. Everything else, such as pip and build tools, is left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS, EDGE = "stratamq", "strata-edge-native"
STORES = ("s3", "hdfs", "gs")


def main() -> int:
    """Split; the exit code says whether all distributions were found."""
    environment, folder = Path(sys.argv[1]), Path(sys.argv[2])
    installed: dict[str, Distribution] = {
        canonicalize_name(each.metadata["Name"]): each for each in distributions()
    }
    common = closure(installed, [Requirement(OURS)])
    storage = closure(installed, [Requirement(f"{OURS}[{','.join(STORES)}]")]) - common
    broker = closure(installed, [Requirement(EDGE)]) - common
    for name, layer in (("storage", storage), ("broker", broker)):
        move(environment, folder / name, [installed[each] for each in layer])
    unused = installed.keys() - common - storage - broker
    move(environment, folder / "unused", [installed[each] for each in unused])
    shutil.rmtree(folder / "unused")
    target = folder / "common" / environment.relative_to("/")
    shutil.copytree(environment, target, symlinks=True)
    strip(folder)
    for name in ("common", "storage", "broker"):
        print(name, size_mb(folder / name), "MB")
    return 0


def closure(installed: dict[str, Distribution], wanted: list[Requirement]) -> set[str]:
    """Return the names of distributions that requirements need, with their own."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        requirement = wanted.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for line in installed[name].requires or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
                wanted.append(needed)
    return found


def move(environment: Path, folder: Path, layer: Iterable[Distribution]) -> None:
    """Move the files of distributions to a folder, under the path that they had."""
    for distribution in layer:
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file))).resolve()
            if not source.is_file() or environment not in source.parents:
                continue
            target = folder / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source, target)
    for path in sorted(environment.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def strip(folder: Path) -> None:
    """Remove the debug symbols of native modules; nothing needs them to run."""
    for path in folder.rglob("*.so*"):
        command = ["strip", "--strip-unneeded", str(path)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own


def size_mb(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
