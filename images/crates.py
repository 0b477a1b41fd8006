"""Add the Rust crates of the native edge to a list of software (CycloneDX); standard library only.

python crates.py CRATES_LOCK SBOM
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path


def main() -> int:
    """Add the crates; a list that has them already stays as it is."""
    lock, path = Path(sys.argv[1]), Path(sys.argv[2])
    document = json.loads(path.read_text())
    components = document.setdefault("components", [])
    known = {each.get("purl") for each in components}
    for crate in tomllib.loads(lock.read_text())["package"]:
        name, version = crate["name"], crate["version"]
        purl = f"pkg:cargo/{name}@{version}"
        if "checksum" not in crate or purl in known:
            # The edge itself, or added by an earlier run.
            continue
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": crate["checksum"]}],
            }
        )
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{path}: {len(components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
