"""The life of a release in real pods, under load: nothing acked is lost, no send fails.

python -m tests.kubernetes.life --image FILE.tar [--out RESULT.json] [--only CHANGE...]

Installs the chart, then upgrades, rolls back, adds the console, closes the network to strangers,
scales storage from 3 to 5 and back, lets volumes grow, deletes pods, loses a volume and a node, and
is refused what would lose replicas. The result has for each change how long it took and what
clients saw.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.release import NAME, NAMESPACE, Clients, Release, now_s
from tests.kubernetes.rig.binaries import ROOT, missing
from tests.kubernetes.rig.cluster import Rig
from tests.kubernetes.rig.processes import PartError, wait_for

Result = dict[str, Any]

_FETCH = """
import ssl, sys, urllib.request
trusted = ssl.create_default_context(cafile="/etc/strata-tls/ca.crt")
with urllib.request.urlopen(sys.argv[1], context=trusted, timeout=10) as answer:
    print(answer.status, answer.read(2_000).decode())
"""


def main() -> int:
    """Run it; the exit code is 0 when each change went well and nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, required=True, help="archive of `docker save`")
    parser.add_argument("--name", default="stratamq/strata:0.2.0", help="REPOSITORY:TAG in it")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "kubernetes" / "life.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "kubernetes" / "run")
    parser.add_argument("--only", nargs="*", default=[name for name, _ in CHANGES])
    parser.add_argument("--keep", action="store_true", help="stay until Enter before it ends")
    options = parser.parse_args()
    if reason := missing(pods=True):
        sys.exit(reason)
    rig = Rig(options.folder.absolute(), [options.image.absolute()])
    result: Result = {"changes": []}
    with rig.running():
        try:
            live(Release(rig, options.name), options.only, result)
        finally:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            if options.keep:
                input("Enter ends it")
    return 0 if result.get("is_good") else 1


def live(release: Release, only: list[str], result: Result) -> None:
    """Install, then make each change under load."""
    result["install"] = say(install(release))
    clients = Clients(release, "life-normal", "life-fifo", "life")
    try:
        clients.wait_for_answers(100)
        for name, change in CHANGES:
            if name in only:
                result["changes"].append(say(changed(release, clients, name, change)))
        result["clients"] = say(clients.stop())
    finally:
        clients.kill()
    judged = result["clients"]
    result["is_good"] = (
        not any(each["error"] for each in result["changes"])
        and judged["failed"] == judged["lost"] == 0
        and not judged["violations"]
    )


def install(release: Release) -> Result:
    """Install the chart; return how long it took until pods were ready and a message was back."""
    begun_s = now_s()
    release.install()
    ready_s = now_s() - begun_s
    release.test()
    first_s = now_s() - begun_s
    release.create_topic("life-normal", "--queues", "12")
    release.create_topic("life-fifo", "--type", "FIFO", "--queues", "6")
    release.create_group("life-fifo", "--fifo")
    racks = {node["endpoints"][0]: node["rack"] for node in release.nodes() if node["rack"]}
    return {
        "ready_s": round(ready_s, 1),
        "first_message_s": round(first_s, 1),
        "racks": sorted(set(racks.values())),
    }


def changed(
    release: Release, clients: Clients, name: str, change: Callable[[Release], Result]
) -> Result:
    """Make a change; return how long it took, what it says of itself and what clients saw."""
    print(f"... {name}", flush=True)
    clients.begin(name)
    found: Result = {"error": ""}
    try:
        found |= change(release)
        found["healthy_after_s"] = round(release.wait_healthy(), 1)
    except (PartError, AssertionError) as error:
        traceback.print_exc()
        found["error"] = str(error)[-1_000:] or "assertion"
    return clients.end() | found


def upgrade(release: Release) -> Result:
    """Change the configuration: each pod is replaced, one of each tier at a time."""
    before = ids(release)
    release.upgrade("--set", "config.node.log_level=warning")
    release.wait_ready()
    assert not ids(release) & before, "pods were not replaced"
    return {}


def rollback(release: Release) -> Result:
    """Go back to the revision before."""
    before = ids(release)
    release.rollback()
    release.wait_ready()
    assert not ids(release) & before, "pods were not replaced"
    return {}


def console(release: Release) -> Result:
    """The console comes up, and shows its page to whoever trusts the release's certificate."""
    release.upgrade("--set", "console.enabled=true")
    release.wait_ready()
    page = release.python(_FETCH, f"https://{NAME}-console.{NAMESPACE}.svc:8085/")
    assert page.startswith("200 ") and "<!doctype html>" in page.lower(), page[:200]
    return {}


def network_policies(release: Release) -> Result:
    """A stranger reaches the port for clients and no other; pods of the release reach all."""
    stranger = release.start_stranger()
    targets = release.opened()
    everything = set(targets.values())

    def strangers() -> set[str]:
        return {targets[each] for each in release.reached(stranger, list(targets))}

    seconds = wait_for(lambda: strangers() == everything, "a stranger reaches everything", 60)
    release.upgrade("--set", "networkPolicy.enabled=true")
    release.wait_ready()
    targets = release.opened()
    seconds = wait_for(lambda: strangers() == {"broker/grpc"}, "a stranger reaches one port", 60)
    own = {targets[each] for each in release.reached(None, list(targets))}
    assert own == everything, everything - own
    release.stop_stranger()
    return {"closed_after_s": round(seconds, 1), "ports": sorted(everything)}


def scale_out(release: Release) -> Result:
    """Five storage nodes: the two new ones join and get replicas by themselves."""
    release.upgrade("--set", "storage.replicas=5")
    new = release.storage_nodes(3) | release.storage_nodes(4)
    assert len(new) == 2, new
    seconds = wait_for(lambda: all(replicas(release, node) for node in new), "replicas", 300)
    return {"replicas_after_s": round(seconds, 1)}


def scale_in(release: Release) -> Result:
    """Three again: the hook drains two nodes, their pods end, they are forgotten."""
    leaving = release.storage_nodes(3) | release.storage_nodes(4)
    release.upgrade("--set", "storage.replicas=3")
    assert not leaving & {node["node"] for node in release.nodes()}, "nodes are still listed"
    return {}


def refused_scale_in(release: Release) -> Result:
    """Two would lose replicas: the hook refuses, and nothing changes."""
    try:
        release.upgrade("--set", "storage.replicas=2")
    except PartError:
        spec = release.get("statefulset", f"{NAME}-storage")["spec"]
        assert spec["replicas"] == 3, "the StatefulSet was changed"
        return {"refused": True}
    raise AssertionError("it was not refused")


def volume_growth(release: Release) -> Result:
    """Volumes get larger; no pod is replaced."""
    before = ids(release)
    release.upgrade("--set", "storage.persistence.size=3Gi")
    claims = release.get("pvc")["items"]
    sizes = {
        item["metadata"]["name"]: item["spec"]["resources"]["requests"]["storage"]
        for item in claims
        if f"data-{NAME}-storage-" in item["metadata"]["name"]
    }
    assert set(sizes.values()) == {"3Gi"}, sizes
    assert ids(release) == before, "pods were replaced"
    return {"sizes": sizes}


def pod_deletion(release: Release) -> Result:
    """One pod of each tier is deleted, without a grace period."""
    broker = release.get("pods", "-l", "app.kubernetes.io/component=broker")["items"][0]
    pods = [f"{NAME}-storage-1", f"{NAME}-nameserver-1", broker["metadata"]["name"]]
    release.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")
    return {"ready_after_s": round(release.wait_ready(), 1)}


def volume_loss(release: Release) -> Result:
    """A storage node loses its volume: it comes back empty, and its replicas are rebuilt."""
    [node] = release.storage_nodes(2)
    pod = f"{NAME}-storage-2"
    release.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    release.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    wait_for(lambda: bool(release.storage_nodes(2) - {node}), "a new node", 300)
    # The runbook says so: the old node is lost for good.
    release.strata("node", "remove", node, "--force", "--yes")
    return {"ready_after_s": round(release.wait_ready(), 1)}


def node_loss(release: Release) -> Result:
    """A machine dies; its pods start elsewhere once the operator says that it is gone."""
    [node] = [each for each in release.rig.nodes if each.number == 2]
    node.kill()
    release.control.kubectl(
        "taint", "node", node.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
    begun_s = now_s()
    wait_for(lambda: not on_node(release, node.name), "no pod is on the lost node", 300)
    release.wait_ready()
    return {"ready_after_s": round(now_s() - begun_s, 1)}


def ids(release: Release) -> set[str]:
    """Return the uids of the pods of the tiers."""
    tiers = "app.kubernetes.io/component in (nameserver,storage,broker)"
    return {item["metadata"]["uid"] for item in release.get("pods", "-l", tiers)["items"]}


def on_node(release: Release, node: str) -> list[str]:
    """Return the pods of a node."""
    items = release.get("pods", "--field-selector", f"spec.nodeName={node}").get("items", [])
    return [item["metadata"]["name"] for item in items]


def replicas(release: Release, node: str) -> int:
    """Return how many replicas a storage node holds."""
    return len(json.loads(release.strata("node", "show", node, "-o", "json"))["replicas"])


def say(result: Result) -> Result:
    """Print a result and return it."""
    print(json.dumps(result), flush=True)
    return result


CHANGES: list[tuple[str, Callable[[Release], Result]]] = [
    ("upgrade", upgrade),
    ("rollback", rollback),
    ("console", console),
    ("network_policies", network_policies),
    ("scale_out", scale_out),
    ("scale_in", scale_in),
    ("refused_scale_in", refused_scale_in),
    ("volume_growth", volume_growth),
    ("pod_deletion", pod_deletion),
    ("volume_loss", volume_loss),
    ("node_loss", node_loss),
]


if __name__ == "__main__":
    sys.exit(main())
