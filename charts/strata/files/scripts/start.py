"""Starts a process of StrataMQ in a pod: adds the facts that only the pod knows to its arguments.

CHART_RACK, or the file CHART_RACK_FILE: the failure domain of the node that the pod runs on.
CHART_POD_DOMAIN: the pod is reached under its address as a name, 10-0-0-7.DOMAIN.
CHART_FIRST_ADMIN: a folder with access_key and secret_key of the first admin.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FIRST_ADMIN_FILE = Path("/run/strata/first-admin.json")


def main() -> None:
    """Become the process; the arguments are those of `strata`."""
    arguments = sys.argv[1:]
    if rack := rack_of():
        arguments.append(f"--rack={rack}")
    if domain := os.environ.get("CHART_POD_DOMAIN", ""):
        name = os.environ["POD_IP"].replace(".", "-").replace(":", "-")
        arguments.append(f"--advertise={name}.{domain}")
    if folder := os.environ.get("CHART_FIRST_ADMIN", ""):
        write_admin(Path(folder), FIRST_ADMIN_FILE)
        arguments.append(f"--first-admin-file={FIRST_ADMIN_FILE}")
    os.execvp("strata", ["strata", *arguments])


def rack_of() -> str:
    """Return the rack; empty: none is known."""
    if file := os.environ.get("CHART_RACK_FILE", ""):
        return Path(file).read_text(encoding="utf-8").strip()
    return os.environ.get("CHART_RACK", "")


def write_admin(folder: Path, file: Path) -> None:
    """Write the keys of a secret in the form that the server reads, for its own user only."""
    keys = {
        name: (folder / name).read_text(encoding="utf-8").strip()
        for name in ("access_key", "secret_key")
    }
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(keys, out)


if __name__ == "__main__":
    main()
