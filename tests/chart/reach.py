"""A reader of NetworkPolicies, and the tables of who reaches which port of a release.

`TABLES` is written by hand. `test_network_policies.py` compares it with what the rendered policies
say, `tests/kubernetes/policies_on_a_server.py` with what connections find that a real enforcer
lets through.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

NAMESPACE = "messaging"
_OURS = {"app.kubernetes.io/name": "strata", "app.kubernetes.io/instance": "demo"}
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Peer:
    """Somebody who connects.

    Attributes:
        name: for people.
        namespace: of its pod; empty: it is no pod.
        labels: of its pod.
        space_labels: of its namespace.
        address: of one who is no pod.
    """

    name: str
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    space_labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


STRANGERS = (
    Peer("client", "shop", space_labels={"messaging": "allowed"}),
    Peer("prometheus", "monitoring"),
    Peer("proxy", "ingress"),
    Peer("stranger", "elsewhere"),
    Peer("neighbour", NAMESPACE),
    Peer("other release", NAMESPACE, {**_OURS, "app.kubernetes.io/instance": "other"}),
    Peer("twin", "elsewhere", {**_OURS, _COMPONENT: "broker"}),
    Peer("outside", address="192.0.2.7"),
    Peer("far outside", address="198.51.100.7"),
)
"""Peers that are no pods of the release; a twin has the labels of one, in another namespace."""

Cell = tuple[str, str, str]
"""Peer, component, name of a port."""

EVERYBODY = frozenset(peer.name for peer in STRANGERS)
NOBODY: frozenset[str] = frozenset()
_PROMETHEUS = frozenset({"prometheus"})

VALUES: dict[str, Object] = {
    "enabled": {
        "networkPolicy": {"enabled": True},
        "console": {"enabled": True},
        "broker": {"keda": {"enabled": True}},
    },
    "standalone": {
        "mode": "standalone",
        "networkPolicy": {"enabled": True},
        "console": {"enabled": True},
    },
}
"""Values of the tables that are no example."""

TABLES: dict[str, dict[tuple[str, str], frozenset[str]]] = {
    "enabled": {
        ("nameserver", "angelia"): NOBODY,
        ("nameserver", "metrics"): NOBODY,
        ("storage", "angelia"): NOBODY,
        ("storage", "metrics"): NOBODY,
        ("broker", "grpc"): EVERYBODY,
        ("broker", "metrics"): NOBODY,
        ("broker", "operators"): NOBODY,
        ("broker", "peers"): NOBODY,
        ("console", "console"): EVERYBODY,
        ("console", "metrics"): NOBODY,
        ("autoscaler", "scaler"): EVERYBODY,
        ("autoscaler", "metrics"): NOBODY,
    },
    "standalone": {
        ("standalone", "grpc"): EVERYBODY,
        ("standalone", "metrics"): NOBODY,
        ("standalone", "operators"): NOBODY,
        ("console", "console"): EVERYBODY,
        ("console", "metrics"): NOBODY,
    },
    "production.yaml": {
        ("nameserver", "angelia"): NOBODY,
        ("nameserver", "metrics"): _PROMETHEUS,
        ("storage", "angelia"): NOBODY,
        ("storage", "metrics"): _PROMETHEUS,
        ("broker", "grpc"): frozenset({"client", "outside"}),
        ("broker", "metrics"): _PROMETHEUS,
        ("broker", "operators"): NOBODY,
        ("broker", "peers"): NOBODY,
        ("console", "console"): frozenset({"proxy"}),
        ("console", "metrics"): _PROMETHEUS,
    },
}
"""By set of values and port: the strangers who reach it. Pods of the release reach all ports."""


def expected(table: str, ours: list[Peer]) -> dict[Cell, bool]:
    """Return whether each peer must reach each port.

    Args:
        table: a key of `TABLES`.
        ours: pods of the release.
    """
    found: dict[Cell, bool] = {}
    for (component, port), strangers in TABLES[table].items():
        found |= {(peer.name, component, port): True for peer in ours}
        found |= {(peer.name, component, port): peer.name in strangers for peer in STRANGERS}
    return found


def templates(items: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Yield metadata and spec of the pods that objects make; a hook's Pod is one itself."""
    for item in items:
        if item["kind"] == "Pod":
            yield item["metadata"], item["spec"]
        elif item["kind"] == "CronJob":
            inner = item["spec"]["jobTemplate"]["spec"]["template"]
            yield inner["metadata"], inner["spec"]
        elif item["kind"] in ("StatefulSet", "Deployment", "Job"):
            inner = item["spec"]["template"]
            yield inner["metadata"], inner["spec"]


def pods(items: list[Object]) -> list[Peer]:
    """Return one pod of each component of the release."""
    found = {
        metadata["labels"][_COMPONENT]: Peer(
            metadata["labels"][_COMPONENT], NAMESPACE, metadata["labels"]
        )
        for metadata, _ in templates(items)
    }
    return list(found.values())


def ports(items: list[Object]) -> dict[tuple[str, str], int]:
    """Return the ports that the pods open, by component and name."""
    return {
        (metadata["labels"][_COMPONENT], port["name"]): port["containerPort"]
        for metadata, spec in templates(items)
        for container in spec["containers"]
        for port in container.get("ports", ())
    }


def reaches(policies: list[Object], peer: Peer, target: Peer, port: int) -> bool:
    """Whether policies let a peer connect to a port of a pod.

    Raises:
        ValueError: a policy says something that this reader does not know.
    """
    concerned = [
        policy["spec"]
        for policy in policies
        if "Ingress" in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], target.labels)
    ]
    if not concerned:
        return True
    rules = [rule for spec in concerned for rule in spec.get("ingress", ())]
    return any(_names(rule, port) and _lets(rule, peer) for rule in rules)


def _names(rule: Object, port: int) -> bool:
    listed = rule.get("ports")
    if listed is None:
        return True
    for each in listed:
        if set(each) - {"port", "endPort", "protocol"} or not isinstance(each["port"], int):
            raise ValueError(f"unknown port {each}")
    tcp = [each for each in listed if each.get("protocol", "TCP") == "TCP"]
    return any(each["port"] <= port <= each.get("endPort", each["port"]) for each in tcp)


def _lets(rule: Object, peer: Peer) -> bool:
    sources = rule.get("from")
    return sources is None or any(_is(source, peer) for source in sources)


def _is(source: Object, peer: Peer) -> bool:
    if set(source) - {"podSelector", "namespaceSelector", "ipBlock"} or not source:
        raise ValueError(f"unknown peer {source}")
    if block := source.get("ipBlock"):
        if not peer.address:
            return False
        address = ipaddress.ip_address(peer.address)
        inside = [ipaddress.ip_network(each) for each in (block["cidr"], *block.get("except", ()))]
        return address in inside[0] and not any(address in each for each in inside[1:])
    if not peer.namespace:
        return False
    spaces = source.get("namespaceSelector")
    if spaces is None:
        is_space = peer.namespace == NAMESPACE
    else:
        own = {"kubernetes.io/metadata.name": peer.namespace, **peer.space_labels}
        is_space = _selects(spaces, own)
    return is_space and _selects(source.get("podSelector", {}), peer.labels)


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    if set(selector) - {"matchLabels"}:
        raise ValueError(f"unknown selector {selector}")
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
