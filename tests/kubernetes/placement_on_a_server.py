"""The places of pods: real controllers make them, a real scheduler spreads them over zones.

`make test-kubernetes` runs it, as root. Nodes are objects without a kubelet, so no container runs;
the server admits each pod at the level "restricted".
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kubernetes.rendered import CHART, NAME, NAMESPACE, Object
from tests.kubernetes.rig.binaries import SCHEDULING, missing_of
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import wait_for
from tests.kubernetes.rig.volumes import Volumes
from tests.parts.required import absent

ZONES = ("a", "b", "c")
_NODES_PER_ZONE = 3
_ZONE = "topology.kubernetes.io/zone"
_COMPONENT = "app.kubernetes.io/component"
_RELEASE = ("-n", NAMESPACE, "--no-hooks", "-f", str(CHART / "examples" / "three-zones.yaml"))


@pytest.fixture(scope="module")
def cluster(control: Control, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """Controllers, scheduler, volumes, and three nodes in each of three zones."""
    if reason := missing_of(SCHEDULING):
        absent(reason)
    if os.geteuid() != 0:
        absent("volumes of pods need root")
    for zone in ZONES:
        for number in range(_NODES_PER_ZONE):
            make_node(control, f"node-{zone}{number}", zone)
    control.start_scheduling(are_nodes_real=False)
    volumes = Volumes(control, tmp_path_factory.mktemp("volumes"))
    volumes.start()
    control.helm("install", NAME, str(CHART), *_RELEASE)
    yield control
    volumes.stop()
    control.helm("uninstall", NAME, "-n", NAMESPACE, "--no-hooks")


def make_node(control: Control, name: str, zone: str) -> None:
    """Make a node that nobody runs."""
    labels = {_ZONE: zone, "kubernetes.io/hostname": name}
    metadata = {"name": name, "labels": labels}
    control.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    room = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    status = {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    control.kubectl("patch", "node", name, *patch)
    # The server marks each new node as not ready; its controller would take that back.
    control.kubectl("patch", "node", name, "--type=merge", "-p", '{"spec":{"taints":null}}')


def pods(control: Control, component: str) -> list[Object]:
    """Return the pods of a component."""
    labels = f"app.kubernetes.io/instance={NAME},{_COMPONENT}={component}"
    found: list[Object] = control.get("pods", "-n", NAMESPACE, "-l", labels).get("items", [])
    return found


def placed(control: Control, component: str, count: int) -> list[Object]:
    """Return the pods of a component, once so many have a node."""

    def all_are() -> bool:
        control.check()
        return sum(bool(pod["spec"].get("nodeName")) for pod in pods(control, component)) == count

    wait_for(all_are, f"{count} pods of {component} have a node")
    return pods(control, component)


@pytest.mark.parametrize(("component", "count"), [("nameserver", 3), ("storage", 6), ("broker", 3)])
def test_each_zone_has_as_many_pods_of_a_tier(cluster: Control, component: str, count: int) -> None:
    """The spread is the same in each zone, and no node has two of the storage pods."""
    found = placed(cluster, component, count)
    zones = Counter(pod["spec"]["nodeName"][len("node-")] for pod in found)
    assert zones == dict.fromkeys(ZONES, count // len(ZONES))
    if component == "storage":
        assert len({pod["spec"]["nodeName"] for pod in found}) == count


def test_a_pod_gets_the_label_that_its_rack_is_read_from(cluster: Control) -> None:
    """Kubernetes copies the zone of the node; the variable of the container names that label."""
    for pod in placed(cluster, "storage", 6):
        zone = pod["spec"]["nodeName"][len("node-")]
        assert pod["metadata"]["labels"][_ZONE] == zone
        [variable] = [
            each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "CHART_RACK"
        ]
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == f"metadata.labels['{_ZONE}']"


def test_a_pod_waits_instead_of_making_zones_uneven(cluster: Control) -> None:
    """With `racks.required` and a zone without room the new pods wait; with room they start."""
    placed(cluster, "storage", 6)
    nodes = [f"node-c{number}" for number in range(_NODES_PER_ZONE)]
    for node in nodes:
        cluster.kubectl("cordon", node)
    cluster.helm("upgrade", NAME, str(CHART), *_RELEASE, "--set", "storage.replicas=9")

    def waits() -> list[Object]:
        return [pod for pod in pods(cluster, "storage") if is_refused(pod)]

    # Two zones take one more each: a third would be two ahead of the zone without room.
    wait_for(lambda: len(waits()) == 1, "one pod waits")
    placed(cluster, "storage", 8)
    [pod] = waits()
    assert "topology spread constraints" in pod["status"]["conditions"][0]["message"]
    for node in nodes:
        cluster.kubectl("uncordon", node)
    found = placed(cluster, "storage", 9)
    assert Counter(pod["metadata"]["labels"][_ZONE] for pod in found) == dict.fromkeys(ZONES, 3)


def is_refused(pod: Object) -> bool:
    """Whether the scheduler found no node for a pod."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(
        each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


def test_the_server_admits_each_pod_that_can_be_turned_on(cluster: Control) -> None:
    """The console, the scaler and the toolbox run, too; no workload waits for a pod."""
    options = ("--set", "console.enabled=true", "--set", "broker.keda.enabled=true")
    cluster.helm("upgrade", NAME, str(CHART), *_RELEASE, *options)
    for component in ("console", "autoscaler", "toolbox"):
        [pod] = placed(cluster, component, 1)
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
