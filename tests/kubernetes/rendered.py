"""The chart's objects as helm renders them for a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.rig.binaries import ROOT
from tests.kubernetes.rig.control import Control

CHART = ROOT / "charts" / "strata"
NAME, NAMESPACE = "demo", "messaging"

Object = dict[str, Any]


def rendered(control: Control, *options: str, example: str = "") -> list[Object]:
    """Return the objects of a release.

    Args:
        control: has helm.
        options: of helm.
        example: name of a file of values; empty: none.
    """
    values = ["-f", str(CHART / "examples" / example)] if example else []
    version = ("--kube-version", "1.36.3")
    text = control.helm("template", NAME, str(CHART), "-n", NAMESPACE, *version, *values, *options)
    return [item for item in yaml.safe_load_all(text) if item]


def of_kind(items: list[Object], *kinds: str) -> list[Object]:
    """Return the objects of some kinds."""
    return [item for item in items if item["kind"] in kinds]


def dry_run(control: Control, items: list[Object], folder: Path) -> list[str]:
    """Create objects in a dry run at the server, with strict fields; return what it said of each.

    Raises:
        PartError: it refuses an object, or warns of one.
    """
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(items))
    answer = control.kubectl(
        *("apply", "-n", NAMESPACE, "--dry-run=server", "--validate=strict"),
        *("--warnings-as-errors", "-f", str(file)),
    )
    return answer.splitlines()


def make_namespace(control: Control, name: str, *labels: str) -> None:
    """Make a namespace with the service account that pods need."""
    control.kubectl("create", "namespace", name)
    control.kubectl("create", "serviceaccount", "default", "-n", name)
    if labels:
        control.kubectl("label", "namespace", name, *labels)
