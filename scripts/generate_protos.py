"""Generate Python code from `protos/` (`make proto`), or check that it is fresh (`--check`)."""

from __future__ import annotations

import argparse
import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def main() -> int:
    """Run; exit code 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("output", type=Path, help="folder that holds the generated packages")
    arguments = parser.parse_args()
    if not arguments.check:
        generate(arguments.output)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        stale = list(differences(fresh, arguments.output))
    for name in stale:
        print(f"{name}: not what protos/ gives; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


def generate(output: Path) -> None:
    """Write `_pb2` modules, stubs and package markers; the import path is the proto path."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    plugins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(  # noqa: S603 - fixed arguments
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"),
            *(f"--python_out={output}", f"--grpc_python_out={output}"),
            *(f"--mypy_out=quiet:{output}", f"--mypy_grpc_out=quiet:{output}"),
            *sources,
        ],
        check=True,
        env={**os.environ, "PATH": plugins},
    )
    for top in ("apache", "strata"):
        for folder in [output / top, *(p for p in (output / top).rglob("*") if p.is_dir())]:
            if folder.name != "__pycache__":
                (folder / "__init__.py").touch()
                (folder / "py.typed").touch()


def differences(fresh: Path, committed: Path) -> list[str]:
    """Return the names of files that are missing, left over or different."""
    names = set()
    for folder in (fresh, committed):
        for top in ("apache", "strata"):
            for path in (folder / top).rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    names.add(str(path.relative_to(folder)))
    return sorted(
        name
        for name in names
        if not (fresh / name).is_file()
        or not (committed / name).is_file()
        or not filecmp.cmp(fresh / name, committed / name, shallow=False)
    )


if __name__ == "__main__":
    sys.exit(main())
