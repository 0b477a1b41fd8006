"""Before an upgrade or a rollback: health gate, growth of volumes, drain of nodes that go.

It refuses, and Kubernetes then changes nothing, when the cluster is not healthy, when nameservers
would be added or taken away, when a volume would shrink, and when raft groups would have more
replicas than storage nodes. Volumes grow last: StatefulSets are deleted for that, and a refusal
after it would leave the pods to nobody.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cluster
import kube

# The API server writes 1000 as 1k, and 1024Pi as 1Ei, whatever it was told.
_UNITS = {"": 1, "k": 10**3}
_UNITS |= {unit: 1_000**power for power, unit in enumerate("KMGTPE", 1)}
_UNITS |= {f"{unit}i": 1_024**power for power, unit in enumerate("KMGTPE", 1)}


def main() -> None:
    """Prepare the upgrade."""
    settings = cluster.settings()
    before = pods_of(settings, settings.storage)
    if before is None:
        print("nothing is installed yet")
        return
    wanted = settings.replicas[settings.storage]
    check_nameservers(settings)
    growing = volumes_that_grow(settings)
    service = kube.get(f"/api/v1/namespaces/{settings.namespace}/services/{settings.operators}")
    if service is None:
        # The release before was made by a chart without this service.
        if wanted < before:
            cluster.refuse("the first upgrade to this chart must not take storage nodes away")
        print("no operators' port yet: no health gate this time")
    elif settings.is_gated and not cluster.is_healthy(settings.wait_s):
        cluster.refuse("the cluster is not healthy; hooks.healthGate=false upgrades all the same")
    if service is not None and wanted < before:
        drain(settings, before, wanted)
    grow_volumes(settings, growing)


def pods_of(settings: cluster.Settings, stateful_set: str) -> int | None:
    """Return how many pods a StatefulSet has; None: it never was.

    An upgrade that failed after volumes grew leaves pods without their StatefulSet; their claims
    then tell how many there may be, those of nodes that were taken away among them.
    """
    if (replicas := cluster.replicas_of(stateful_set, settings.namespace)) is not None:
        return replicas
    ordinals = [ordinal for ordinal, _ in claims_of(settings.namespace, stateful_set)]
    return max(ordinals) + 1 if ordinals else None


def check_nameservers(settings: cluster.Settings) -> None:
    """Refuse to change the number of nameservers: they are voters of one raft group."""
    before = pods_of(settings, settings.nameserver)
    wanted = settings.replicas[settings.nameserver]
    if before not in (None, wanted):
        cluster.refuse(f"nameserver.replicas is {before} for good, not {wanted}")


def drain(settings: cluster.Settings, before: int, wanted: int) -> None:
    """Drain the storage nodes whose pods go: those with the highest ordinals."""
    check_replicas(wanted)
    nodes = cluster.nodes_of(settings.storage)
    leaving = [node["node"] for number in range(wanted, before) for node in nodes.get(number, ())]
    try:
        for node in leaving:
            print(f"draining {node}", flush=True)
            cluster.strata("node", "drain", node)
    except RuntimeError as error:
        undo(leaving)
        cluster.refuse(str(error))
    for node in leaving:
        if not cluster.until(partial(is_empty, node), settings.drain_s):
            undo(leaving)
            cluster.refuse(f"{node} still holds replicas after {settings.drain_s} s")
        print(f"{node} holds no replica", flush=True)


def undo(leaving: list[str]) -> None:
    """Put nodes in service again, each of them that can be."""
    for node in leaving:
        try:
            cluster.strata("node", "drain", node, "--undo")
        except RuntimeError as error:
            print(error, flush=True)


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


def volumes_that_grow(settings: cluster.Settings) -> dict[str, str]:
    """Return the new size by StatefulSet, of those whose volumes are to grow; refuse to shrink."""
    growing = {}
    for name, size in settings.sizes.items():
        found = kube.get(stateful_set_path(settings, name))
        templates = found["spec"].get("volumeClaimTemplates", []) if found else []
        if not templates:
            continue
        before = templates[0]["spec"]["resources"]["requests"]["storage"]
        if in_bytes(size) < in_bytes(before):
            cluster.refuse(f"volumes of {name} have {before}; they cannot shrink to {size}")
        if in_bytes(size) > in_bytes(before):
            growing[name] = size
    return growing


def grow_volumes(settings: cluster.Settings, growing: dict[str, str]) -> None:
    """Let the claims of StatefulSets grow; their template cannot change, so they are made again.

    Their pods stay: a StatefulSet is deleted without them, and the upgrade creates it anew. All
    claims come first: one that cannot grow fails the upgrade while every StatefulSet is there.
    """
    for name, size in growing.items():
        grow_claims(settings.namespace, name, size)
    for name, size in growing.items():
        path = stateful_set_path(settings, name)
        kube.call("DELETE", path, {"propagationPolicy": "Orphan"})
        if not cluster.until(partial(is_gone, path), settings.wait_s):
            cluster.refuse(f"StatefulSet {name} does not go; the next upgrade creates it anew")
        print(f"volumes of {name} grow to {size}", flush=True)


def grow_claims(namespace: str, stateful_set: str, size: str) -> None:
    """Ask for a larger volume for each pod of a StatefulSet."""
    patch = {"spec": {"resources": {"requests": {"storage": size}}}}
    for _, claim in claims_of(namespace, stateful_set):
        if in_bytes(claim["spec"]["resources"]["requests"]["storage"]) < in_bytes(size):
            path = f"{claims_path(namespace)}/{claim['metadata']['name']}"
            kube.call("PATCH", path, patch, content_type="application/merge-patch+json")


def claims_of(namespace: str, stateful_set: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the claims of a StatefulSet's pods, with the ordinals of these."""
    listed = kube.get(claims_path(namespace)) or {"items": []}
    found = []
    for claim in listed["items"]:
        prefix, _, ordinal = claim["metadata"]["name"].rpartition("-")
        if prefix == f"data-{stateful_set}" and ordinal.isdigit():
            found.append((int(ordinal), claim))
    return found


def claims_path(namespace: str) -> str:
    """Return the path of a namespace's claims."""
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


def stateful_set_path(settings: cluster.Settings, name: str) -> str:
    """Return the path of a StatefulSet."""
    return f"/apis/apps/v1/namespaces/{settings.namespace}/statefulsets/{name}"


def in_bytes(size: str) -> int:
    """Return the bytes of a size such as 100Gi."""
    digits = size.rstrip("kKMGTPEi")
    return int(digits) * _UNITS[size[len(digits) :]]


if __name__ == "__main__":
    main()
