"""Build the native edge and install it into this environment; needs cargo.

    python scripts/build_edge.py [--wheel FOLDER] [--lock]

`--wheel` leaves the wheel in a folder and installs nothing. `--lock` writes crates.lock after a
change of Cargo.toml.

The crates are pinned in `libs/edge/native/crates.lock`: Cargo.lock without the lines that name the
registry, because no file here names a host. The build puts these lines back as cargo writes them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = ROOT / "libs" / "edge" / "native"
PINNED = CRATE / "crates.lock"
LOCK = CRATE / "Cargo.lock"
TARGET = ROOT / "build" / "edge"
_SOURCE = re.compile(r'^source = ".*"\n', re.M)


def main() -> int:
    """Build; the exit code says whether it went well."""
    parser = argparse.ArgumentParser(description="Build the native edge.")
    parser.add_argument("--wheel", type=Path, help="leave the wheel here, install nothing")
    parser.add_argument("--lock", action="store_true", help="pin the crates of Cargo.toml anew")
    given = parser.parse_args()
    if shutil.which("cargo") is None:
        print("the native edge needs cargo (Rust 1.85 or newer)", file=sys.stderr)
        return 1
    if given.lock:
        LOCK.unlink(missing_ok=True)
        _run("cargo", "generate-lockfile", "--quiet")
        PINNED.write_text(_SOURCE.sub("", LOCK.read_text()))
        return 0
    restore_lock()
    with tempfile.TemporaryDirectory() as folder:
        target = given.wheel.resolve() if given.wheel else Path(folder)
        _run(
            *(sys.executable, "-m", "maturin", "build", "--quiet", "--release", "--locked"),
            *("--compatibility", "linux", "--interpreter", sys.executable, "--out", str(target)),
        )
        if given.wheel is None:
            (wheel,) = target.glob("strata_edge_native-*.whl")
            _run(
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
                *("--disable-pip-version-check", "--force-reinstall", str(wheel)),
            )
    return 0


def restore_lock() -> None:
    """Write Cargo.lock from the pinned crates, unless it is that already."""
    pinned = PINNED.read_text()
    if LOCK.exists() and _SOURCE.sub("", LOCK.read_text()) == pinned:
        return
    LOCK.unlink(missing_ok=True)
    _run("cargo", "generate-lockfile", "--quiet")
    found = _SOURCE.search(LOCK.read_text())
    assert found is not None, "cargo names no registry"
    # Only a crate from the registry has a checksum.
    LOCK.write_text(re.sub(r"^(checksum = )", found.group() + r"\1", pinned, flags=re.M))


def _run(*command: str) -> None:
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    subprocess.run(command, cwd=CRATE, check=True, env=environment)  # noqa: S603 (our own)


if __name__ == "__main__":
    sys.exit(main())
