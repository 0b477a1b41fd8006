"""NetworkPolicies of the chart, enforced: real connections find what the tables say.

`make test-kubernetes` runs it, as root. The objects are at a real API server; kube-router's loop
writes the tables of a node from them. Pods are network namespaces that listen on the ports of their
components; their labels are those that the chart renders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart import reach
from tests.chart.reach import STRANGERS, TABLES, VALUES, Cell, Peer
from tests.kubernetes.rendered import CHART, NAMESPACE, Object, make_namespace, of_kind, rendered
from tests.kubernetes.rig import network
from tests.kubernetes.rig.binaries import missing_for_policies
from tests.kubernetes.rig.cables import Cables, reached
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import Part, PartError, wait_for
from tests.parts.required import absent

NODE = "node-0"
_SETTLED_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """A control plane and the network of one node."""
    if reason := missing_for_policies():
        absent(reason)
    network.make_control()
    control = Control(tmp_path_factory.mktemp("policies"), in_namespace=True)
    try:
        control.start_server()
        network.make_node(0, [])
        spaces = {peer.namespace: peer.space_labels for peer in STRANGERS if peer.namespace}
        for name, labels in spaces.items():
            make_namespace(control, name, *(f"{key}={value}" for key, value in labels.items()))
        control.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        address = {"type": "InternalIP", "address": network.node_address(0)}
        set_status(control, "node", NODE, {"addresses": [address]})
        yield control
    finally:
        control.stop()
        network.remove(network.node_namespace(0))
        network.remove(network.CONTROL)


@pytest.fixture(scope="module")
def enforcer(server: Control) -> Part:
    """kube-router's loop on the node."""
    enter = ("nsenter", f"--net=/run/netns/{network.node_namespace(0)}")
    return server.start_loop("kuberouter", NODE, network.SERVICES, enter=enter)


@pytest.fixture
def cables() -> Iterator[Cables]:
    found = Cables()
    yield found
    found.close()


def set_status(control: Control, kind: str, name: str, status: Object, space: str = "") -> None:
    """Write the status of an object, as a kubelet does."""
    where = ("-n", space) if space else ()
    patch = json.dumps({"status": status})
    change = ("--subresource=status", "--type=merge", "-p", patch)
    control.kubectl("patch", kind, name, *where, *change)


def start(control: Control, peer: Peer, address: str) -> None:
    """Make the object of a pod that runs."""
    name = peer.name.replace(" ", "-")
    control.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": peer.namespace, "labels": peer.labels},
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": False,
                "containers": [{"name": "none", "image": "none"}],
            },
        }
    )
    status = {
        "phase": "Running",
        "hostIP": network.node_address(0),
        "podIP": address,
        "podIPs": [{"ip": address}],
    }
    set_status(control, "pod", name, status, peer.namespace)


class Street:
    """Everybody who connects, plugged in.

    Args:
        control: with the API server.
        cables: makes the namespaces.
        ours: pods of the release, which listen.
        ports: that they open.
    """

    def __init__(
        self,
        control: Control,
        cables: Cables,
        ours: list[Peer],
        *,
        ports: dict[tuple[str, str], int],
    ) -> None:
        self._ports = ports
        self._spaces: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        for number, peer in enumerate([*ours, *STRANGERS]):
            address = peer.address or f"10.213.100.{number + 10}"
            self._spaces[peer.name] = cables.plug(address)
            self._addresses[peer.name] = address
            if peer.namespace:
                start(control, peer, address)
        for pod in ours:
            opened = {port for (component, _), port in ports.items() if component == pod.name}
            cables.listen(self._spaces[pod.name], opened)

    def cells(self) -> dict[Cell, bool]:
        """Return who reaches what."""
        targets = {
            (self._addresses[component], port): (component, name)
            for (component, name), port in self._ports.items()
        }
        found: dict[Cell, bool] = {}
        for peer, space in self._spaces.items():
            open_ones = reached(space, targets)
            found |= {(peer, *cell): target in open_ones for target, cell in targets.items()}
        return found

    def probed(self) -> set[tuple[str, str]]:
        """Return the ports that the node itself reaches, as the kubelet's probes must."""
        targets = {
            (self._addresses[component], port): (component, name)
            for (component, name), port in self._ports.items()
        }
        return {targets[each] for each in reached(network.node_namespace(0), targets)}

    def settle(self, enforcer: Part, expected: dict[Cell, bool]) -> None:
        """Wait until the cells are as they must be; fail with those that are not."""
        found: dict[Cell, bool] = {}

        def is_so() -> bool:
            enforcer.check()
            found.update(self.cells())
            return found == expected

        try:
            wait_for(is_so, "the cells", _SETTLED_S)
        except PartError:
            enforcer.check()
            wrong = {cell: found[cell] for cell in expected if found[cell] != expected[cell]}
            raise AssertionError(f"reached or not, against the table: {wrong}") from None


@pytest.mark.parametrize("table", TABLES)
def test_connections_find_what_the_table_says(
    server: Control, enforcer: Part, cables: Cables, table: str, tmp_path: Path
) -> None:
    """Without policies everybody reaches everything; with them each cell is as it must be."""
    file = tmp_path / "values.yaml"
    own = VALUES.get(table) or yaml.safe_load((CHART / "examples" / table).read_text())
    file.write_text(yaml.safe_dump(own))
    items = rendered(server, "-f", str(file))
    ours, ports = reach.pods(items), reach.ports(items)
    street = Street(server, cables, ours, ports=ports)
    expected = reach.expected(table, ours)
    policies = of_kind(items, "NetworkPolicy")
    for each in policies:
        each["metadata"]["namespace"] = NAMESPACE
    try:
        street.settle(enforcer, dict.fromkeys(expected, True))
        server.apply(*policies)
        street.settle(enforcer, expected)
        assert street.probed() == set(ports)
    finally:
        server.kubectl("delete", "networkpolicy", "-n", NAMESPACE, "--all")
        for space in {peer.namespace for peer in STRANGERS if peer.namespace}:
            force = ("--all", "--force", "--grace-period=0")
            server.kubectl("delete", "pod", "-n", space, *force)
