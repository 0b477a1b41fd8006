"""The console in the chart: off by default, the program's flags, TLS, and no keys of its own."""

from __future__ import annotations

import json
from pathlib import Path

import helm_python
import kubernetes_validate
import pytest
import yaml

from strata_cli.main import app
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.reference import commands
from strata_runtime.config import load
from tests.chart.test_chart import (
    CHART,
    KUBERNETES_VERSION,
    STANDALONE,
    Object,
    objects,
    of_kind,
    pods,
)
from tests.chart.test_chart import chart as chart

CONSOLE: Object = {"console": {"enabled": True}}


def pod_of(items: list[Object]) -> Object:
    found: Object = of_kind(items, "Deployment", "console")["spec"]["template"]["spec"]
    return found


def variables(items: list[Object]) -> dict[str, str]:
    [container] = pod_of(items)["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def test_there_is_none_unless_it_is_wanted(chart: helm_python.Chart) -> None:
    """The page that can do everything is something that an operator decides about."""
    names = {item["metadata"]["name"] for item in objects(chart)}
    assert not {name for name in names if name.endswith("-console")}


@pytest.mark.parametrize("mode", [{}, STANDALONE])
def test_flags_and_keys_are_the_programs(chart: helm_python.Chart, mode: Object) -> None:
    """The command has every flag; it asks the operators' port and sends through the clients'."""
    items = objects(chart, CONSOLE | mode)
    [container] = pod_of(items)["containers"]
    command, *arguments = container["args"]
    options = dict(commands(app))[command].assemble_argument_collection(parse_docstring=True)
    known = {option for argument in options for option in argument.names}
    given = dict(argument.split("=", 1) for argument in arguments)
    assert set(given) <= known
    broker = "standalone" if mode else "broker"
    assert given["--client-endpoint"] == f"demo-{broker}.messaging.svc:8081"
    profile = of_kind(items, "ConfigMap", "profile")["data"]["profiles.toml"]
    operators = "standalone" if mode else "operators"
    assert f'endpoint = "demo-{operators}.messaging.svc:8083"' in profile
    section = load(ClusterConfig, None, variables(items)).console
    assert (section.certificate_file, section.behind_tls, section.insecure) == (
        "/etc/strata-console-tls/tls.crt",
        False,
        False,
    )
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounted["console-tls"] == "/etc/strata-console-tls"


def test_it_has_no_keys(chart: helm_python.Chart) -> None:
    """Users sign in with their own: no secret but its certificate is mounted or in a variable."""
    pod = pod_of(objects(chart, CONSOLE))
    assert all("valueFrom" not in each for each in pod["containers"][0]["env"])
    secrets = {
        volume["secret"]["secretName"]: {item["key"] for item in volume["secret"]["items"]}
        for volume in pod["volumes"]
        if volume["name"] == "console-tls"
    }
    assert secrets == {"demo-edge-tls": {"tls.crt", "tls.key"}}
    [authority] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "tls"]
    assert authority["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_its_name_is_in_the_certificate(chart: helm_python.Chart) -> None:
    """Only where it has TLS itself."""

    def hosts(values: Object) -> set[str]:
        for item in objects(chart, values):
            if item["kind"] == "Job" and item["metadata"]["name"] == "demo-setup":
                env = item["spec"]["template"]["spec"]["containers"][0]["env"]
                [plan] = [json.loads(each["value"]) for each in env if each["name"] == "CHART_PLAN"]
                [edge] = [one for one in plan["certificates"] if one["role"] == "client"]
                return set(edge["hosts"])
        raise AssertionError("there is no job")

    name = "demo-console.messaging.svc"
    assert name in hosts(CONSOLE)
    assert "demo-broker.messaging.svc" in hosts(CONSOLE)
    assert name not in hosts({})
    assert name not in hosts({"console": {"enabled": True, "tls": False}})


def test_a_proxy_may_have_the_tls(chart: helm_python.Chart) -> None:
    """Then the console says so to itself, and an ingress leads to it."""
    ingress = {"enabled": True, "className": "nginx", "hosts": ["console.example.org"]}
    values = {"console": {"enabled": True, "tls": False, "ingress": ingress}}
    chart.validate_schema(values)
    items = objects(chart, values)
    section = load(ClusterConfig, None, variables(items)).console
    assert (section.certificate_file, section.behind_tls) == ("", True)
    assert [volume["name"] for volume in pod_of(items)["volumes"]] == [
        "tmp",
        "config",
        "profile",
        "tls",
    ]
    spec = of_kind(items, "Ingress", "console")["spec"]
    [path] = spec["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "demo-console", "port": {"name": "console"}}
    service = of_kind(items, "Service", "console")["spec"]
    assert [port["appProtocol"] for port in service["ports"] if port["name"] == "console"] == [
        "http"
    ]


def test_without_access_control_nobody_signs_in(chart: helm_python.Chart) -> None:
    """Anybody who reaches a broker may do anything there already."""
    items = objects(chart, CONSOLE | {"accessControl": {"enabled": False}})
    assert load(ClusterConfig, None, variables(items)).console.insecure is True


def test_network_policies_keep_others_out(chart: helm_python.Chart) -> None:
    """Browsers reach the console's port alone, from where the values say."""
    ingress = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    policy = {"enabled": True, "console": ingress}
    items = objects(chart, CONSOLE | {"networkPolicy": policy})
    spec = of_kind(items, "NetworkPolicy", "console")["spec"]
    assert {"ports": [{"port": 8085}], "from": ingress} in spec["ingress"]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "console"
    labels = {item["metadata"]["name"] for item in objects(chart, {"networkPolicy": policy})}
    assert "demo-console" not in labels


@pytest.mark.parametrize(
    "values",
    [
        CONSOLE,
        CONSOLE | STANDALONE,
        {
            "console": {
                "enabled": True,
                "tls": False,
                "ingress": {"enabled": True, "hosts": ["c.example.org"]},
                "nodeSelector": {"disk": "any"},
                "tolerations": [{"key": "a"}],
                "podLabels": {"team": "mq"},
                "podAnnotations": {"note": "x"},
                "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            },
            "networkPolicy": {"enabled": True, "console": [{"podSelector": {}}]},
        },
    ],
)
def test_its_objects_are_valid_and_restricted(chart: helm_python.Chart, values: Object) -> None:
    """They pass the API's schema; the pods pass the level restricted and have no token."""
    chart.validate_schema(values)
    items = objects(chart, values)
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(set(names)) == len(names)
    for item in items:
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
    for pod in pods(items):
        assert pod["automountServiceAccountToken"] is False
        for each in pod["containers"]:
            assert each["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    "console", [{"replicas": 2}, {"tls": "maybe"}, {"service": {"type": "Gateway"}}]
)
def test_wrong_values_are_refused(chart: helm_python.Chart, console: Object) -> None:
    """Sign-ins are in the memory of one pod: a number of pods is no value."""
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema({"console": console})


@pytest.mark.parametrize(
    "example", sorted((CHART / "examples").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_examples_pass_the_schema(chart: helm_python.Chart, example: Path) -> None:
    """And what they render is valid, as far as its kinds are Kubernetes' own."""
    values = yaml.safe_load(example.read_text())
    chart.validate_schema(values)
    for item in objects(chart, values):
        if "." not in item["apiVersion"] or item["apiVersion"].partition("/")[0].endswith("k8s.io"):
            kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
