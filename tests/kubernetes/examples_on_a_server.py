"""Each example of the chart, and its defaults, on a real API server: no field is refused.

`make test-kubernetes` runs it; pytest does not find it by itself, since it needs Go to build the
API server. The namespace enforces the level "restricted" of the Pod Security standards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.rig.binaries import ROOT, missing
from tests.kubernetes.rig.control import Control
from tests.parts.required import absent

CHART = ROOT / "charts" / "strata"
EXAMPLES = ["", *sorted(path.name for path in (CHART / "examples").glob("*.yaml"))]
NAMESPACE = "messaging"
# Kinds of operators that a cluster without them does not know.
FOREIGN = ("monitoring.coreos.com", "cert-manager.io", "keda.sh")


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    if reason := missing(pods=False):
        absent(reason)
    control = Control(tmp_path_factory.mktemp("control"), in_namespace=False)
    try:
        control.start_server()
        control.kubectl("create", "namespace", NAMESPACE)
        control.kubectl("create", "serviceaccount", "default", "-n", NAMESPACE)
        level = "pod-security.kubernetes.io/enforce=restricted"
        control.kubectl("label", "namespace", NAMESPACE, level)
        yield control
    finally:
        control.stop()


def rendered(control: Control, example: str, *options: str) -> list[dict[str, object]]:
    """Return the objects of the chart, without those of operators."""
    values = ["-f", str(CHART / "examples" / example)] if example else []
    version = ("--kube-version", "1.36.3")
    text = control.helm(
        "template", "demo", str(CHART), "-n", NAMESPACE, *version, *values, *options
    )
    found = [item for item in yaml.safe_load_all(text) if item]
    return [item for item in found if not item["apiVersion"].startswith(FOREIGN)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda name: name or "defaults")
def test_the_server_accepts_an_example(control: Control, example: str, tmp_path: Path) -> None:
    """A dry run at the server, with strict fields, creates each object and warns of nothing."""
    control.helm("lint", str(CHART), "--strict")
    file = tmp_path / "objects.yaml"
    items = rendered(control, example)
    file.write_text(yaml.safe_dump_all(items))
    answer = control.kubectl(
        *("apply", "-n", NAMESPACE, "--dry-run=server", "--validate=strict"),
        *("--warnings-as-errors", "-f", str(file)),
    )
    assert len(answer.splitlines()) == len(items) > 5


def test_a_misspelt_field_is_refused(control: Control, tmp_path: Path) -> None:
    """The dry run is strict: the test above would see a wrong field."""
    items = rendered(control, "", "--set-json", 'storage.extraVolumes=[{"name":"x","emptyDyr":{}}]')
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(items))
    command = ("apply", "-n", NAMESPACE, "--dry-run=server", "--validate=strict", "-f", str(file))
    with pytest.raises(Exception, match="emptyDyr"):
        control.kubectl(*command)
