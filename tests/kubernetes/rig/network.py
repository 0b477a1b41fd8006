"""Network namespaces: one for the control plane with a bridge, one for each node.

control  10.213.0.1 on the bridge      node N  10.213.0.(10+N), pods 10.213.(100+N).0/24
"""

from __future__ import annotations

from contextlib import suppress

from tests.kubernetes.rig.processes import PartError, run

CONTROL_ADDRESS = "10.213.0.1"
PODS = "10.213.0.0/16"
SERVICES = "10.96.0.0/16"
CONTROL = "strata-k8s"


def node_namespace(number: int) -> str:
    """Return the name of a node's namespace."""
    return f"{CONTROL}-{number}"


def node_address(number: int) -> str:
    """Return the address of a node."""
    return f"10.213.0.{10 + number}"


def pod_subnet(number: int) -> str:
    """Return the addresses of a node's pods."""
    return f"10.213.{100 + number}.0/24"


def make_control() -> None:
    """Make the namespace of the control plane."""
    remove(CONTROL)
    run("ip", "netns", "add", CONTROL)
    _inside(CONTROL, "link", "set", "lo", "up")
    _inside(CONTROL, "link", "add", "br0", "type", "bridge")
    _inside(CONTROL, "address", "add", f"{CONTROL_ADDRESS}/24", "dev", "br0")
    _inside(CONTROL, "link", "set", "br0", "up")
    _forward(CONTROL)


def make_node(number: int, others: list[int]) -> None:
    """Make the namespace of a node, with routes to and from the pods of all others."""
    name, cable = node_namespace(number), f"node{number}"
    remove(name)
    with suppress(PartError):
        _inside(CONTROL, "link", "delete", cable)
    run("ip", "netns", "add", name)
    _inside(name, "link", "set", "lo", "up")
    _inside(CONTROL, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
    _inside(CONTROL, "link", "set", cable, "master", "br0", "up")
    _inside(name, "address", "add", f"{node_address(number)}/24", "dev", "eth0")
    _inside(name, "link", "set", "eth0", "up")
    _forward(name)
    # Addresses of services need a route, although nothing there is asked.
    _inside(name, "route", "replace", "default", "via", CONTROL_ADDRESS)
    _inside(CONTROL, "route", "replace", pod_subnet(number), "via", node_address(number))
    for other in others:
        _inside(name, "route", "replace", pod_subnet(other), "via", node_address(other))
        _inside(
            node_namespace(other),
            *("route", "replace", pod_subnet(number), "via", node_address(number)),
        )


def remove(name: str) -> None:
    """Remove a namespace if it is there."""
    with suppress(PartError):
        run("ip", "netns", "delete", name)


def _forward(name: str) -> None:
    run("nsenter", f"--net=/run/netns/{name}", "sysctl", "-qw", "net.ipv4.ip_forward=1")


def _inside(name: str, *arguments: str) -> None:
    run("nsenter", f"--net=/run/netns/{name}", "ip", *arguments)
