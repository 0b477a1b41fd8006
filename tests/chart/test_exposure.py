"""The outside of the chart: services, ingresses, cert-manager's certificates, scraped ports."""

from __future__ import annotations

import json

import helm_python
import kubernetes_validate
import pytest

from strata_runtime import certificate_watch
from strata_runtime.roles import ROLE_URI
from tests.chart import reach
from tests.chart.test_chart import KUBERNETES_VERSION, STANDALONE, Object, objects, of_kind
from tests.chart.test_chart import chart as chart

ALL: Object = {
    "console": {"enabled": True},
    "broker": {"keda": {"enabled": True}},
    "ingress": {"enabled": True, "className": "nginx", "hosts": ["mq.example.org"]},
}
MANAGED: Object = {
    "tls": {
        "hosts": ["mq.example.org"],
        "certManager": {
            "enabled": True,
            "issuerRef": {"name": "internal", "kind": "ClusterIssuer"},
        },
    },
    "clusterTls": {
        "certManager": {"enabled": True, "issuerRef": {"name": "strata-cluster", "kind": "Issuer"}}
    },
    "console": {"enabled": True},
}


def named(items: list[Object], kind: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in items if item["kind"] == kind}


@pytest.mark.parametrize("mode", [{}, STANDALONE])
def test_each_service_leads_to_a_port_that_its_pods_open(
    chart: helm_python.Chart, mode: Object
) -> None:
    """A selector fits the pods of one component, and each target is a port of theirs."""
    items = objects(chart, ALL | mode)
    ours, opened = reach.pods(items), reach.ports(items)
    for name, service in named(items, "Service").items():
        selector = service["spec"]["selector"].items()
        [pod] = [pod for pod in ours if selector <= pod.labels.items()]
        for port in service["spec"]["ports"]:
            assert opened[pod.name, port["targetPort"]] == port["port"], name


@pytest.mark.parametrize("mode", [{}, STANDALONE])
def test_an_ingress_leads_to_a_port_of_a_service(chart: helm_python.Chart, mode: Object) -> None:
    """Clients' calls as gRPC to the brokers, browsers to the console, each under every path."""
    proxied = {"enabled": True, "tls": False, "ingress": {"enabled": True, "hosts": ["c.example"]}}
    items = objects(chart, ALL | mode | {"console": proxied})
    services = named(items, "Service")
    found = {}
    for name, ingress in named(items, "Ingress").items():
        for rule in ingress["spec"]["rules"]:
            [path] = rule["http"]["paths"]
            assert (path["path"], path["pathType"]) == ("/", "Prefix")
            backend = path["backend"]["service"]
            [port] = [
                port
                for port in services[backend["name"]]["spec"]["ports"]
                if port["name"] == backend["port"]["name"]
            ]
            found[name, rule["host"]] = (backend["name"], port["port"], port["appProtocol"])
    node = "standalone" if mode else "broker"
    assert found == {
        (f"demo-{node}", "mq.example.org"): (f"demo-{node}", 8081, "grpc"),
        ("demo-console", "c.example"): ("demo-console", 8085, "http"),
    }


@pytest.mark.parametrize(
    "values",
    [
        {"ingress": {"enabled": True}},
        {"ingress": {"enabled": True, "hosts": []}},
        {"console": {"enabled": True, "ingress": {"enabled": True}}},
        {"tls": {"certManager": {"enabled": True}}},
        {"clusterTls": {"certManager": {"enabled": True, "issuerRef": {"kind": "Issuer"}}}},
        {"service": {"externalTrafficPolicy": "Somehow"}},
        {"networkPolicy": {"autoscaler": "everybody"}},
    ],
)
def test_what_a_server_would_refuse_is_refused_before(
    chart: helm_python.Chart, values: Object
) -> None:
    """An ingress without hosts and a certificate without an issuer never reach the API server."""
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)


def test_addresses_of_clients_may_be_kept(chart: helm_python.Chart) -> None:
    """Network policies then see a client outside, not the node that it came by."""
    values = {"service": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}}
    for mode, name in (({}, "broker"), (STANDALONE, "standalone")):
        items = objects(chart, values | mode)
        spec = named(items, "Service")[f"demo-{name}"]["spec"]
        assert spec["externalTrafficPolicy"] == "Local"
        for item in items:
            kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
    assert "externalTrafficPolicy" not in of_kind(objects(chart), "Service", "broker")["spec"]


def test_a_prometheus_may_select_the_monitor_by_a_label(chart: helm_python.Chart) -> None:
    """As it may with the rules; the operator's charts look for `release`."""
    values = {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "kube"}}}}
    chart.validate_schema(values)
    monitor = of_kind(objects(chart, values), "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "kube"


@pytest.mark.parametrize("mode", [{}, STANDALONE])
def test_each_pod_that_shows_metrics_is_scraped_once(
    chart: helm_python.Chart, mode: Object
) -> None:
    """The monitor selects one service with the port of metrics for each component."""
    items = objects(chart, ALL | mode | {"metrics": {"serviceMonitor": {"enabled": True}}})
    chosen = of_kind(items, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    scraped = [
        service["spec"]["selector"]["app.kubernetes.io/component"]
        for service in named(items, "Service").values()
        if chosen <= service["metadata"]["labels"].items()
        and any(port["name"] == "metrics" for port in service["spec"]["ports"])
    ]
    shown = [component for component, name in reach.ports(items) if name == "metrics"]
    assert sorted(scraped) == sorted(shown)


@pytest.mark.parametrize("mode", [{}, STANDALONE])
def test_cert_manager_gives_what_the_authority_of_the_chart_gives(
    chart: helm_python.Chart, mode: Object
) -> None:
    """The same secrets, hosts and roles; nothing is left to the job that makes certificates."""
    own = {"tls": {"hosts": ["mq.example.org"]}, "console": {"enabled": True}} | mode
    [plan] = [
        json.loads(variable["value"])
        for variable in named(objects(chart, own), "Job")["demo-setup"]["spec"]["template"]["spec"][
            "containers"
        ][0]["env"]
        if variable["name"] == "CHART_PLAN"
    ]
    wanted = {
        each["secret"]: (each["hosts"], [f"{ROLE_URI}{each['role']}"])
        for each in plan["certificates"]
    }
    items = objects(chart, MANAGED | mode)
    found = {
        spec["secretName"]: (spec["dnsNames"], spec.get("uris", [f"{ROLE_URI}client"]))
        for spec in (item["spec"] for item in named(items, "Certificate").values())
    }
    assert found == wanted
    usages = {
        item["spec"]["secretName"]: "client auth" in item["spec"]["usages"]
        for item in named(items, "Certificate").values()
    }
    assert usages == {secret: secret != "demo-edge-tls" for secret in wanted}
    assert "CronJob" not in {item["kind"] for item in items}


def test_cert_manager_renews_before_the_cluster_reports_an_end(chart: helm_python.Chart) -> None:
    """Else each renewal would be a problem of the cluster's health, for as long as it takes."""
    for item in named(objects(chart, MANAGED), "Certificate").values():
        before_h = int(item["spec"]["renewBefore"].removesuffix("h"))
        assert before_h > 24 * certificate_watch.WARN_DAYS + 24
        assert before_h < int(item["spec"]["duration"].removesuffix("h")) / 2
