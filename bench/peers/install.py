"""How the parts of a system come into `build/peers`; nothing is installed elsewhere."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.peers.errors import MissingError, PeerError

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "peers"
TARGET = ROOT / "build" / "peers"
LOAD = ROOT / "build" / "bench" / "load"
ETCD = ROOT / "build" / "bench" / "etcd"
INSTALL_LIMIT_S = 900.0
JAVA = ("java", "a JDK 17 (openjdk-17-jdk-headless)")
MAVEN = ("mvn", "Maven (maven)")
GO = ("go", "Go 1.26 or newer")
LOG_TAIL_BYTES = 1_500


def jars(name: str) -> Path:
    """Fetch what `installs/NAME.xml` lists; return the folder of the jars.

    Raises:
        MissingError: there is no JDK or no Maven.
        PeerError: Maven failed.
    """
    _need(JAVA)
    _need(MAVEN)
    listing = HERE / "installs" / f"{name}.xml"
    folder = TARGET / name / "lib"
    command = ["mvn", "--batch-mode", "--quiet", "-f", str(listing)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    _once(name, [listing], folder, command, HERE)
    return folder


def go_program(name: str, package: str) -> Path:
    """Build a program out of the module `publish`; return its path.

    Raises:
        MissingError: there is no Go.
        PeerError: the build failed.
    """
    _need(GO)
    module = HERE / "publish"
    target = TARGET / "bin" / name
    sources = sorted([*module.glob("go.*"), *module.glob("*.go")])
    command = ["go", "build", "-trimpath", "-o", str(target), package]
    _once(name, sources, target, command, module)
    return target


def load_generator() -> Path:
    """Build the load generator over the v2 protocol; return its path.

    Raises:
        MissingError: there is no Go.
        PeerError: the build failed.
    """
    _need(GO)
    # Go's own cache makes this quick when nothing changed.
    _run("load", [str(ROOT / "bench" / "load" / "build.sh")], ROOT)
    return LOAD


def etcd() -> Path:
    """Build etcd; return its path.

    Raises:
        MissingError: there is no Go.
        PeerError: the build failed.
    """
    _need(GO)
    script = ROOT / "bench" / "etcd" / "build.sh"
    _once("etcd", [script], ETCD, [str(script)], ROOT)
    return ETCD


def _need(tool: tuple[str, str]) -> None:
    program, how = tool
    if shutil.which(program) is None:
        raise MissingError(f"{program} is not there: install {how}")


def _once(
    name: str, sources: Sequence[Path], target: Path, command: Sequence[str], folder: Path
) -> None:
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    marker = TARGET / f"{name}.installed"
    if target.exists() and marker.is_file() and marker.read_text() == digest:
        return
    print(f"Installing {name} into {target.relative_to(ROOT)} ...", flush=True)
    if target.is_dir():
        shutil.rmtree(target)
    _run(name, command, folder)
    marker.write_text(digest)


def _run(name: str, command: Sequence[str], folder: Path) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    log = TARGET / f"{name}-install.log"
    try:
        with log.open("wb") as output:
            subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_LIMIT_S,
                check=True,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        raise PeerError(f"installing {name} failed: {error}: {tail}") from None
