"""Before an upgrade or a rollback: health gate, growth of volumes, drain of nodes that go.

It refuses, and Kubernetes then changes nothing, when the cluster is not healthy, when nameservers
would be added or taken away, when a volume would shrink, and when raft groups would have more
replicas than storage nodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cluster
import kube

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS |= {f"{unit}i": 1_024**power for power, unit in enumerate("KMGTP", 1)}


def main() -> None:
    """Prepare the upgrade."""
    settings = cluster.settings()
    before = cluster.replicas_of(settings.storage, settings.namespace)
    if before is None:
        print("nothing is installed yet")
        return
    wanted = settings.replicas[settings.storage]
    check_nameservers(settings)
    service = kube.get(f"/api/v1/namespaces/{settings.namespace}/services/{settings.operators}")
    if service is None:
        # The release before was made by a chart without this service.
        if wanted < before:
            cluster.refuse("the first upgrade to this chart must not take storage nodes away")
        print("no operators' port yet: no health gate this time")
    elif settings.is_gated and not cluster.is_healthy(settings.wait_s):
        cluster.refuse("the cluster is not healthy; hooks.healthGate=false upgrades all the same")
    grow_volumes(settings)
    if service is not None and wanted < before:
        drain(settings, before, wanted)


def check_nameservers(settings: cluster.Settings) -> None:
    """Refuse to change the number of nameservers: they are voters of one raft group."""
    before = cluster.replicas_of(settings.nameserver, settings.namespace)
    wanted = settings.replicas[settings.nameserver]
    if before not in (None, wanted):
        cluster.refuse(f"nameserver.replicas is {before} for good, not {wanted}")


def drain(settings: cluster.Settings, before: int, wanted: int) -> None:
    """Drain the storage nodes whose pods go: those with the highest ordinals."""
    check_replicas(wanted)
    nodes = cluster.nodes_of(settings.storage)
    leaving = [node["node"] for number in range(wanted, before) for node in nodes.get(number, ())]
    for node in leaving:
        print(f"draining {node}", flush=True)
        cluster.strata("node", "drain", node)
    for node in leaving:
        if not cluster.until(partial(is_empty, node), settings.drain_s):
            for each in leaving:
                cluster.strata("node", "drain", each, "--undo")
            cluster.refuse(f"{node} still holds replicas after {settings.drain_s} s")
        print(f"{node} holds no replica", flush=True)


def check_replicas(wanted: int) -> None:
    """Refuse to leave raft groups with fewer replicas than they have."""
    groups = cluster.strata("raft-group", "list")["raft_groups"]
    most = 0
    for group in groups:
        shown = cluster.strata("raft-group", "show", str(group["raft_group"]))
        most = max(most, len([each for each in shown["replicas"] if is_voter(each)]))
    if wanted < most:
        cluster.refuse(
            f"raft groups have {most} replicas, storage.replicas={wanted} would lose some of them"
        )


def is_voter(replica: dict[str, Any]) -> bool:
    """Whether a replica takes part in votes."""
    return "read" not in str(replica.get("role", "")).lower()


def is_empty(node: str) -> bool:
    """Whether a storage node holds no replica any more."""
    try:
        return not cluster.strata("node", "show", node)["replicas"]
    except RuntimeError as error:
        print(error, flush=True)
        return False


def is_gone(path: str) -> bool:
    """Whether an object does not exist."""
    return kube.get(path) is None


def grow_volumes(settings: cluster.Settings) -> None:
    """Let the claims of a StatefulSet grow; its template cannot change, so it is made again.

    Its pods stay: the StatefulSet is deleted without them, and the upgrade creates it anew.
    """
    for name, size in settings.sizes.items():
        path = f"/apis/apps/v1/namespaces/{settings.namespace}/statefulsets/{name}"
        found = kube.get(path)
        templates = found["spec"].get("volumeClaimTemplates", []) if found else []
        if not templates:
            continue
        before = templates[0]["spec"]["resources"]["requests"]["storage"]
        if in_bytes(size) == in_bytes(before):
            continue
        if in_bytes(size) < in_bytes(before):
            cluster.refuse(f"volumes of {name} have {before}; they cannot shrink to {size}")
        grow_claims(settings.namespace, name, size)
        kube.call("DELETE", path, {"propagationPolicy": "Orphan"})
        cluster.until(partial(is_gone, path), settings.wait_s)
        print(f"volumes of {name} grow from {before} to {size}", flush=True)


def grow_claims(namespace: str, stateful_set: str, size: str) -> None:
    """Ask for a larger volume for each pod of a StatefulSet."""
    base = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    listed = kube.get(base) or {"items": []}
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    for claim in listed["items"]:
        name = claim["metadata"]["name"]
        prefix, _, ordinal = name.rpartition("-")
        held = claim["spec"]["resources"]["requests"]["storage"]
        is_ours = prefix == f"data-{stateful_set}" and ordinal.isdigit()
        if is_ours and in_bytes(held) < in_bytes(size):
            kube.call("PATCH", f"{base}/{name}", patch, content_type="application/merge-patch+json")


def in_bytes(size: str) -> int:
    """Return the bytes of a size such as 100Gi."""
    digits = size.rstrip("KMGTPi")
    return int(digits) * _UNITS[size[len(digits) :]]


if __name__ == "__main__":
    main()
