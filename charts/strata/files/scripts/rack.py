"""Writes a label of the pod's node to a file: the rack of the process that runs in the pod."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import kube


def main() -> None:
    """Write the label; empty if the node has none."""
    label, file = sys.argv[1:]
    node = kube.get(f"/api/v1/nodes/{os.environ['NODE_NAME']}") or {"metadata": {}}
    rack = node["metadata"].get("labels", {}).get(label, "")
    Path(file).write_text(rack, encoding="utf-8")
    print(f"rack {rack or 'none'} (label {label} of node {os.environ['NODE_NAME']})")


if __name__ == "__main__":
    main()
