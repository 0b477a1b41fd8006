"""Each example of the chart, and its defaults, on a real API server: no field is refused.

`make test-kubernetes` runs it; pytest does not find it by itself, since it needs Go to build the
API server. The server knows the kinds of cert-manager, KEDA and the Prometheus operator, so nothing
that the chart renders is left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.rendered import CHART, NAMESPACE, dry_run, of_kind, rendered
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import PartError, wait_for

EXAMPLES = ["", *sorted(path.name for path in (CHART / "examples").glob("*.yaml"))]

EVERYTHING = (
    *("--set", "console.enabled=true", "--set", "console.ingress.enabled=true"),
    *("--set", "console.ingress.hosts={console.example.org}", "--set", "console.tls=false"),
    *("--set", "ingress.enabled=true", "--set", "ingress.hosts={mq.example.org}"),
    *("--set", "ingress.className=nginx", "--set", "console.ingress.className=nginx"),
    *("--set", "broker.keda.enabled=true", "--set", "networkPolicy.enabled=true"),
    *("--set", "metrics.serviceMonitor.enabled=true", "--set", "metrics.dashboards.enabled=true"),
    *("--set", "metrics.serviceMonitor.labels.release=kube"),
    *("--set", "metrics.prometheusRule.enabled=true"),
    *("--set", "metrics.prometheusRule.labels.release=kube"),
    *("--set", "tls.certManager.enabled=true", "--set", "tls.certManager.issuerRef.name=all"),
    *("--set", "clusterTls.certManager.enabled=true"),
    *("--set", "clusterTls.certManager.issuerRef.name=cluster"),
    *("--set", "service.type=LoadBalancer", "--set", "service.externalTrafficPolicy=Local"),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda name: name or "defaults")
def test_the_server_accepts_an_example(control: Control, example: str, tmp_path: Path) -> None:
    """A dry run at the server, with strict fields, creates each object and warns of nothing."""
    items = rendered(control, example=example)
    assert len(dry_run(control, items, tmp_path)) == len(items) > 5


@pytest.mark.parametrize("mode", ["cluster", "standalone"])
def test_the_server_accepts_all_that_can_be_turned_on(
    control: Control, mode: str, tmp_path: Path
) -> None:
    """The console, ingresses, KEDA, policies, what the Prometheus operator takes, cert-manager."""
    items = rendered(control, *EVERYTHING, "--set", f"mode={mode}")
    assert len(dry_run(control, items, tmp_path)) == len(items)
    kinds = {item["kind"] for item in items}
    assert {"ServiceMonitor", "PrometheusRule", "Certificate", "Ingress", "NetworkPolicy"} <= kinds
    assert ("ScaledObject" in kinds) == (mode == "cluster")


def test_a_release_takes_what_is_turned_on_and_off_again(control: Control) -> None:
    """No change of values asks the server for a change that it refuses, such as of a selector."""
    place = ("-n", NAMESPACE, "--no-hooks")

    def kinds() -> set[str]:
        stored = yaml.safe_load_all(control.helm("get", "manifest", "grown", "-n", NAMESPACE))
        return {item["kind"] for item in stored if item}

    control.helm("install", "grown", str(CHART), *place)
    before = kinds()
    control.helm("upgrade", "grown", str(CHART), *place, *EVERYTHING)
    assert kinds() - before >= {"Ingress", "NetworkPolicy", "ScaledObject", "Certificate"}
    control.helm("rollback", "grown", "1", *place)
    assert kinds() == before
    control.helm("uninstall", "grown", *place)


def test_the_chart_has_no_faults_of_form(control: Control) -> None:
    """`helm lint` is silent."""
    control.helm("lint", str(CHART), "--strict")


def test_a_misspelt_field_is_refused(control: Control, tmp_path: Path) -> None:
    """The dry run is strict: the tests above would see a wrong field."""
    items = rendered(control, "--set-json", 'storage.extraVolumes=[{"name":"x","emptyDyr":{}}]')
    with pytest.raises(PartError, match="emptyDyr"):
        dry_run(control, items, tmp_path)


@pytest.mark.parametrize(
    "kind", ["ServiceMonitor", "PrometheusRule", "Certificate", "ScaledObject"]
)
def test_a_misspelt_field_of_an_operators_kind_is_refused(
    control: Control, kind: str, tmp_path: Path
) -> None:
    """The server has the operator's own definition, not one that takes everything."""
    [item, *_] = of_kind(rendered(control, *EVERYTHING), kind)
    assert dry_run(control, [item], tmp_path)
    item["spec"]["misspelt"] = True
    with pytest.raises(PartError, match="misspelt"):
        dry_run(control, [item], tmp_path)


def test_an_ingress_is_of_the_class_that_the_values_name(control: Control, tmp_path: Path) -> None:
    """Or, without a name, of the cluster's default class."""
    control.apply(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {
                "name": "front",
                "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"},
            },
            "spec": {"controller": "example.invalid/front"},
        }
    )
    items = rendered(control, *EVERYTHING, "--set", "console.ingress.className=")
    file = tmp_path / "ingresses.yaml"
    file.write_text(yaml.safe_dump_all(of_kind(items, "Ingress")))

    def classes() -> dict[str, str]:
        command = ("apply", "-n", NAMESPACE, "--dry-run=server", "-o", "json", "-f", str(file))
        answer = json.loads(control.kubectl(*command))
        return {
            item["metadata"]["name"]: item["spec"].get("ingressClassName", "")
            for item in answer["items"]
        }

    wanted = {"demo-broker": "nginx", "demo-console": "front"}
    # The server learns of a default class a moment after it was made.
    wait_for(lambda: classes() == wanted, f"classes are {wanted}", 30)
