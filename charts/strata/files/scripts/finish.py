"""After an upgrade or a rollback: forgets nodes whose pods are gone, waits for health."""

from __future__ import annotations

import cluster
import kube


def main() -> None:
    """Finish the upgrade; it fails if the cluster does not become healthy in time."""
    settings = cluster.settings()
    if not cluster.until(lambda: is_rolled_out(settings), settings.wait_s * 10):
        cluster.refuse("the pods were not replaced in time; kubectl get pods tells which")
    wanted = settings.replicas[settings.storage]
    nodes = cluster.nodes_of(settings.storage)
    for ordinal in sorted(nodes):
        for node in nodes[ordinal]:
            if ordinal >= wanted:
                forget(settings, ordinal, node["node"])
            elif node.get("draining"):
                # By an operator, or by a scale in that did not take place.
                print(f"{node['node']} is drained; strata node drain {node['node']} --undo ends it")
    if not cluster.is_healthy(settings.wait_s):
        cluster.refuse("the cluster is not healthy")


def is_rolled_out(settings: cluster.Settings) -> bool:
    """Whether each pod of the StatefulSets is new and ready."""
    base = f"/apis/apps/v1/namespaces/{settings.namespace}/statefulsets"
    for name, replicas in settings.replicas.items():
        found = kube.get(f"{base}/{name}") or {}
        status = found.get("status", {})
        seen = status.get("observedGeneration", 0) >= found.get("metadata", {}).get("generation", 1)
        counts = {status.get("readyReplicas", 0), status.get("replicas", 0)}
        is_new = status.get("updateRevision") == status.get("currentRevision")
        if not (seen and is_new and counts == {replicas}):
            return False
    return True


def forget(settings: cluster.Settings, ordinal: int, node: str) -> None:
    """Remove a node when its pod is gone."""
    pod = f"/api/v1/namespaces/{settings.namespace}/pods/{settings.storage}-{ordinal}"
    if not cluster.until(lambda: kube.get(pod) is None, settings.wait_s):
        cluster.refuse(f"pod {settings.storage}-{ordinal} does not end")

    def is_removed() -> bool:
        try:
            cluster.strata("node", "remove", node, "--yes")
        except RuntimeError as error:
            print(error, flush=True)
            return False
        return True

    if not cluster.until(is_removed, settings.wait_s):
        cluster.refuse(f"node {node} cannot be removed")
    print(f"removed {node}", flush=True)


if __name__ == "__main__":
    main()
