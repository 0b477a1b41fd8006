"""The Helm chart: it lints, renders to valid Kubernetes objects, and agrees with the code."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from strata_cli.main import app
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.reference import commands
from strata_runtime.config import load
from strata_runtime.version import VERSION

CHART = Path(__file__).resolve().parents[2] / "charts" / "strata"
KUBERNETES_VERSION = "1.31"
STANDALONE = {"mode": "standalone"}
TIERS = ("nameserver", "storage", "broker")
DEFAULTS = ClusterConfig()

Object = dict[str, Any]


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(str(CHART)) as loaded:
        yield loaded


def objects(chart: helm_python.Chart, values: Object | None = None) -> list[Object]:
    rendered = chart.render(values or {}, name="demo", namespace="messaging")
    found: list[Object] = []
    for path, text in rendered.items():
        if path.endswith(".yaml"):
            found.extend(item for item in yaml.safe_load_all(text) if item)
    return found


def of_kind(items: list[Object], kind: str, component: str = "") -> Object:
    (item,) = [
        item
        for item in items
        if item["kind"] == kind
        and item["metadata"]["labels"]["app.kubernetes.io/component"].startswith(component)
    ]
    return item


def workload(items: list[Object], component: str) -> Object:
    return of_kind(items, "Deployment" if component == "broker" else "StatefulSet", component)


def container(items: list[Object], component: str) -> Object:
    found: Object = workload(items, component)["spec"]["template"]["spec"]["containers"][0]
    return found


def flags(items: list[Object], component: str) -> dict[str, str]:
    """Return the flags of a component's command."""
    _, *arguments = container(items, component)["args"]
    return dict(argument.split("=", 1) for argument in arguments)


def environment(items: list[Object], component: str) -> dict[str, str]:
    return {
        variable["name"]: variable["value"]
        for variable in container(items, component)["env"]
        if "value" in variable
    }


# Every installation has these: what runs, what hooks may do, the hooks and the test.
ALWAYS = {
    *("ConfigMap", "Service", "ServiceAccount", "StatefulSet", "Deployment"),
    *("Role", "RoleBinding", "Job", "CronJob", "Pod"),
}
RACKS = {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"racks": {"from": "node"}}, ALWAYS | RACKS | {"PodDisruptionBudget"}),
        (
            {
                "tls": {"secretName": "own"},
                "broker": {"autoscaling": {"enabled": True}, "tolerations": [{"key": "a"}]},
                "storage": {"rack": "r1", "nodeSelector": {"disk": "fast"}, "replicas": 5},
                "racks": {"from": "none"},
            },
            ALWAYS | {"PodDisruptionBudget", "HorizontalPodAutoscaler"},
        ),
        (
            {
                "racks": {"from": "label"},
                "networkPolicy": {"enabled": True, "metrics": [{"namespaceSelector": {}}]},
                "ingress": {"enabled": True, "hosts": ["mq.example.org"]},
                "nameserver": {"replicas": 1},
                "storage": {"replicas": 1},
                "broker": {"replicas": 1},
            },
            ALWAYS | {"NetworkPolicy", "Ingress"},
        ),
        (STANDALONE, ALWAYS),
        (STANDALONE | {"tls": {"secretName": "own"}}, ALWAYS - {"CronJob"}),
        (
            STANDALONE | {"standalone": {"persistence": {"enabled": False}}},
            ALWAYS,
        ),
        (
            STANDALONE | {"hooks": {"enabled": False}, "toolbox": {"enabled": False}},
            {"ConfigMap", "Service", "ServiceAccount", "StatefulSet", "Pod"},
        ),
    ],
)
def test_every_object_is_valid_for_kubernetes(
    chart: helm_python.Chart, values: Object, kinds: set[str]
) -> None:
    """Each rendered object passes the API's schema, unknown fields refused; no name is twice."""
    items = objects(chart, values)
    assert {item["kind"] for item in items} == kinds
    for item in items:
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(set(names)) == len(names)


def test_service_monitor_only_when_asked_for(chart: helm_python.Chart) -> None:
    """The ServiceMonitor needs a CRD, so it is off until a value turns it on."""
    values = {"metrics": {"serviceMonitor": {"enabled": True}}}
    assert of_kind(objects(chart, values), "ServiceMonitor")["spec"]["endpoints"] == [
        {"port": "metrics", "interval": "15s"}
    ]


def test_alerts_are_a_rule_of_the_operator_when_wanted(chart: helm_python.Chart) -> None:
    values = {
        "metrics": {
            "prometheusRule": {
                "enabled": True,
                "labels": {"release": "kube"},
                "runbookBase": "/runbooks/",
            }
        }
    }
    rule = of_kind(objects(chart, values), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "kube"
    written = yaml.safe_load((CHART / "files/rules.yaml").read_text())
    (group,), (expected,) = rule["spec"]["groups"], written["groups"]
    assert [each["expr"] for each in group["rules"]] == [each["expr"] for each in expected["rules"]]
    for alert in group["rules"]:
        page = f"/runbooks/{alert['alert']}.md"
        assert alert["annotations"]["runbook"] == page


def test_dashboards_are_a_config_map_when_wanted(chart: helm_python.Chart) -> None:
    items = objects(chart, {"metrics": {"dashboards": {"enabled": True}}})
    board = of_kind(items, "ConfigMap", "dashboards")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"] == {
        path.name: path.read_text() for path in (CHART / "files/dashboards").glob("*.json")
    }


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "both"},
        {"ports": {"grpc": 0}},
        {"nameserver": {"replicas": 2}},
        {"storage": {"persistence": {"size": "lots"}}},
        {"storage": {"shards": 0}},
        {"broker": {"workers": "many"}},
        {"service": {"type": "Gateway"}},
        {"config": {"storage": 1}},
        {"config": {"node": {"grpc_prt": 1}}},
        {"config": {"node": {"grpc_port": "many"}}},
        {"config": {"tier": {"secret_key": "s3cret"}}},
        {"config": {"sections": {}}},
        {"clusterTls": {"mode": "maybe"}},
        {"racks": {"from": "dns"}},
        {"objectStore": {"url": "ftp://bucket"}},
        {"storage": {"persistence": {"whenScaled": "Forget"}}},
        {"unknown": 1},
    ],
)
def test_bad_values_are_refused(chart: helm_python.Chart, values: Object) -> None:
    """The values schema names what is wrong before anything is rendered."""
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)


@pytest.mark.parametrize("component", [*TIERS, "standalone"])
def test_configuration_reaches_the_process_as_toml(
    chart: helm_python.Chart, component: str
) -> None:
    """`config` becomes the file that --config names, and the program can read it."""
    mode = "standalone" if component == "standalone" else "cluster"
    config = {"storage": {"log_segment_bytes": 16_777_216}, "node": {"log_level": "info"}}
    items = objects(chart, {"mode": mode, "config": config})
    text = of_kind(items, "ConfigMap", "config")["data"]["strata.toml"]
    assert tomllib.loads(text) == config
    ClusterConfig.model_validate(tomllib.loads(text))
    assert flags(items, component)["--config"] == "/etc/strata/strata.toml"
    mounts = {
        mount["name"]: mount["mountPath"] for mount in container(items, component)["volumeMounts"]
    }
    assert mounts["config"] == "/etc/strata"
    assert mounts["data"] == flags(items, component)["--data-dir"]


@pytest.mark.parametrize("component", [*TIERS, "standalone"])
def test_commands_flags_and_keys_are_the_programs(chart: helm_python.Chart, component: str) -> None:
    """The command exists, it has every flag, and every variable overrides a key that exists."""
    mode = "standalone" if component == "standalone" else "cluster"
    items = objects(chart, {"mode": mode, "tls": {"secretName": "own"}, "storage": {"rack": "r"}})
    command = dict(commands(app))[component]
    collection = command.assemble_argument_collection(parse_docstring=True)
    known = {option for argument in collection for option in argument.names}
    assert container(items, component)["args"][0] == component
    assert set(flags(items, component)) <= known
    config = load(ClusterConfig, None, environment(items, component))
    template = workload(items, component)["spec"]["template"]["spec"]
    assert config.node.drain_ms < template["terminationGracePeriodSeconds"] * 1_000
    assert config.node.metrics_port == 5557
    assert (config.edge.certificate_file != "") == (component in ("broker", "standalone"))


def test_a_pod_may_have_several_processes(chart: helm_python.Chart) -> None:
    """Their number goes to the command; by default nothing is said, so `config` may say it."""
    assert not {"--shards", "--workers"} & {*flags(objects(chart), "storage")}
    values = {"storage": {"shards": "auto"}, "broker": {"workers": 4}}
    chart.validate_schema(values)
    items = objects(chart, values)

    assert flags(items, "storage")["--shards"] == "auto"
    assert flags(items, "broker")["--workers"] == "4"
    for item in items:
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)


def test_ports_are_those_of_the_code(chart: helm_python.Chart) -> None:
    """The chart's default ports are the defaults of the configuration; containers open them."""
    items = objects(chart)
    expected = {
        "nameserver": ("--port", DEFAULTS.node.nameserver_port),
        "storage": ("--port", DEFAULTS.node.storage_port),
        "broker": ("--grpc-port", DEFAULTS.node.grpc_port),
    }
    for component, (flag, port) in expected.items():
        assert flags(items, component)[flag] == str(port)
        opened = [entry["containerPort"] for entry in container(items, component)["ports"]]
        extra = [8083, 8090] if component == "broker" else []
        assert opened == [port, 5557, *extra]
        service = of_kind(items, "Service", component)["spec"]
        assert [entry["port"] for entry in service["ports"]] == [port, 5557]


def test_the_tiers_find_each_other(chart: helm_python.Chart) -> None:
    """Everybody names the pods of the nameservers by the DNS names of their headless service."""
    items = objects(chart, {"nameserver": {"replicas": 5}, "storage": {"replicas": 2}})
    host = "demo-nameserver.messaging.svc"
    nameservers = ",".join(f"demo-nameserver-{ordinal}.{host}:9877" for ordinal in range(5))
    for component in TIERS:
        assert flags(items, component)["--nameservers"] == nameservers
    for component in ("nameserver", "storage"):
        service = of_kind(items, "Service", component)
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert workload(items, component)["spec"]["serviceName"] == service["metadata"]["name"]
        # With its pod's name in front, it is one of the addresses that the others were given.
        advertised = flags(items, component)["--advertise"]
        assert advertised == f"$(POD_NAME).{service['metadata']['name']}.messaging.svc"
    assert flags(items, "broker")["--storage-seeds"].split(",") == [
        f"demo-storage-{ordinal}.demo-storage.messaging.svc:10920" for ordinal in range(2)
    ]


def test_the_service_of_the_brokers_is_their_virtual_address(chart: helm_python.Chart) -> None:
    """Routes name the ClusterIP service; another address can be given."""
    items = objects(chart)
    service = of_kind(items, "Service", "broker")
    assert "clusterIP" not in service["spec"]
    virtual = f"{service['metadata']['name']}.messaging.svc:8081"
    assert flags(items, "broker")["--virtual-address"] == virtual
    items = objects(chart, {"broker": {"advertisedHost": "mq.example.org"}})
    assert flags(items, "broker")["--virtual-address"] == "mq.example.org:8081"


def test_a_broker_drains_before_it_is_killed(chart: helm_python.Chart) -> None:
    """It leaves the endpoints first, then drains, and has the time for both."""
    items = objects(chart)
    pod = workload(items, "broker")["spec"]["template"]["spec"]
    prestop = container(items, "broker")["lifecycle"]["preStop"]["exec"]["command"]
    drain_ms = int(environment(items, "broker")["STRATA_NODE_DRAIN_MS"])
    assert prestop[0] == "sleep"
    assert int(prestop[1]) * 1_000 + drain_ms < pod["terminationGracePeriodSeconds"] * 1_000
    ready = container(items, "broker")["readinessProbe"]
    assert ready["httpGet"] == {"path": "/ready", "port": "metrics"}


@pytest.mark.parametrize("component", [*TIERS, "standalone"])
def test_probes_ask_what_they_are_for(chart: helm_python.Chart, component: str) -> None:
    """Alive: the loop runs. Ready: it serves and has caught up. An outage restarts nobody."""
    mode = "standalone" if component == "standalone" else "cluster"
    items = objects(chart, {"mode": mode})
    probes = container(items, component)
    assert probes["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
    assert "tcpSocket" in probes["startupProbe"]
    # By HTTP for every tier: a broker that takes TLS only is asked, too.
    assert probes["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
    if component in ("nameserver", "storage"):
        spec = workload(items, component)["spec"]
        # None of them is ready before a majority runs.
        assert spec["podManagementPolicy"] == "Parallel"
    pod = workload(items, component)["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False


def test_data_is_claimed_and_disruptions_are_limited(chart: helm_python.Chart) -> None:
    """Both tiers with data have a claim per pod; of every tier one pod at most is taken away."""
    items = objects(chart)
    for component in ("nameserver", "storage"):
        [claim] = workload(items, component)["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "data"
    for component in TIERS:
        budget = of_kind(items, "PodDisruptionBudget", component)["spec"]
        assert budget["maxUnavailable"] == 1
        labels = workload(items, component)["spec"]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"] == labels


def test_autoscaling_decides_the_number_of_brokers(chart: helm_python.Chart) -> None:
    """With an autoscaler the Deployment names no count, else an upgrade would reset it."""
    assert workload(objects(chart), "broker")["spec"]["replicas"] == 2
    items = objects(chart, {"broker": {"autoscaling": {"enabled": True}}})
    assert "replicas" not in workload(items, "broker")["spec"]
    scaler = of_kind(items, "HorizontalPodAutoscaler", "broker")["spec"]
    assert scaler["scaleTargetRef"]["name"] == workload(items, "broker")["metadata"]["name"]


def test_chart_version_is_the_products(chart: helm_python.Chart) -> None:
    """The chart installs the version that the command reports."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION


def test_the_schema_of_config_is_the_codes() -> None:
    """`make docs` would change nothing; a key with a secret is in no ConfigMap."""
    path = CHART.parents[1] / "scripts" / "chart_schema.py"
    spec = importlib.util.spec_from_file_location("chart_schema", path)
    assert spec is not None
    assert spec.loader is not None
    chart_schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chart_schema)
    assert chart_schema.SCHEMA.read_text() == chart_schema.generated()
    sections = chart_schema.config_schema()["properties"]
    assert set(sections) == set(ClusterConfig.model_fields)
    assert "access_key" in sections["tier"]["properties"]
    assert "secret_key" not in sections["tier"]["properties"]


def pods(items: list[Object]) -> Iterator[Object]:
    """Return the pods of all objects: workloads, jobs, the test."""
    for item in items:
        match item["kind"]:
            case "Pod":
                yield item["spec"]
            case "CronJob":
                yield item["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            case "StatefulSet" | "Deployment" | "Job":
                yield item["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "values",
    [
        STANDALONE,
        {"racks": {"from": "node"}, "broker": {"keda": {"enabled": True}}},
    ],
)
def test_pods_pass_the_level_restricted(chart: helm_python.Chart, values: Object) -> None:
    """No pod, hook or init container has rights that the Pod Security level refuses, or a token."""
    found = list(pods(objects(chart, values)))
    assert len(found) > 3
    for pod in found:
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in [*pod["containers"], *pod.get("initContainers", [])]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_keys_of_the_object_store_are_in_no_config_map(chart: helm_python.Chart) -> None:
    """They come from a secret to the storage pods alone; without one the pods have an identity."""
    store = {"url": "s3://bucket/strata", "existingSecret": "bucket"}
    annotations = {"example.org/role": "storage"}
    values = {"objectStore": store, "storage": {"serviceAccount": {"annotations": annotations}}}
    items = objects(chart, values)
    text = of_kind(items, "ConfigMap", "config")["data"]["strata.toml"]
    assert tomllib.loads(text) == {"tier": {"url": "s3://bucket/strata"}}
    for component in TIERS:
        names = {each["name"] for each in container(items, component)["env"]}
        assert ("STRATA_TIER_SECRET_KEY" in names) == (component == "storage")
    account = of_kind(items, "ServiceAccount", "storage")
    assert account["metadata"]["annotations"] == annotations
    pod = workload(items, "storage")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "is_read", "is_copied"),
    [
        ({"racks": {"from": "node"}}, True, False),
        ({"racks": {"from": "label"}}, False, True),
        ({"racks": {"from": "none"}}, False, False),
        ({"racks": {"from": "node"}, "storage": {"rack": "r1"}}, False, False),
    ],
)
def test_racks_come_from_zones(
    chart: helm_python.Chart, values: Object, is_read: bool, is_copied: bool
) -> None:
    """A storage pod gets the zone of its node as rack, unless one rack is set for all."""
    items = objects(chart, values)
    names = {each["name"] for each in container(items, "storage")["env"]}
    assert ("CHART_RACK_FILE" in names) == is_read
    assert ("CHART_RACK" in names) == is_copied
    pod = workload(items, "storage")["spec"]["template"]["spec"]
    assert bool(pod.get("initContainers")) == is_read


def test_every_pod_calls_others_by_a_name_in_their_certificate(chart: helm_python.Chart) -> None:
    """The plan of certificates has the names that the tiers advertise, a role for each."""
    items = objects(chart)
    [job] = [
        item for item in items if item["kind"] == "Job" and item["metadata"]["name"] == "demo-setup"
    ]
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    [plan] = [json.loads(each["value"]) for each in env if each["name"] == "CHART_PLAN"]
    roles = {each["role"]: each for each in plan["certificates"]}
    assert set(roles) == {"nameserver", "storage", "broker", "client"}
    for component in ("nameserver", "storage"):
        advertised = flags(items, component)["--advertise"].removeprefix("$(POD_NAME)")
        assert roles[component]["hosts"] == [f"*{advertised}"]
        assert flags(items, component)["--cluster-tls"] == "required"
    domain = environment(items, "broker")["CHART_POD_DOMAIN"]
    assert roles["broker"]["hosts"] == [f"*.{domain}"]
    assert "demo-operators.messaging.svc" in roles["client"]["hosts"]
    assert (
        flags(items, "broker")["--virtual-address"].removesuffix(":8081")
        in (roles["client"]["hosts"])
    )


def test_disruption_budgets_follow_the_majority(chart: helm_python.Chart) -> None:
    """Five nameservers can spare two; a raft group of three replicas one, however many nodes."""
    items = objects(chart, {"nameserver": {"replicas": 5}, "storage": {"replicaCount": 7}})
    assert workload(items, "storage")["spec"]["replicas"] == 7
    budgets = {
        component: of_kind(items, "PodDisruptionBudget", component)["spec"]["maxUnavailable"]
        for component in ("nameserver", "storage")
    }
    assert budgets == {"nameserver": 2, "storage": 1}


def test_a_long_name_of_a_release(chart: helm_python.Chart) -> None:
    """Up to 50 characters each object has a name of its own; a longer one is refused."""
    values = {"console": {"enabled": True}, "broker": {"keda": {"enabled": True}}}
    rendered = chart.render(values, name="r" * 50, namespace="messaging")
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    items = [item for text in texts for item in yaml.safe_load_all(text) if item]
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(names) == len(set(names))
    assert max(len(name) for _, name in names) <= 63
    with pytest.raises(helm_python.HelmError, match="51 characters, 50 are possible"):
        chart.render({}, name="r" * 51, namespace="messaging")
