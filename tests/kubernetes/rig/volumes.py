"""A storage class whose volumes are folders of this machine, reachable from each node.

They behave as network disks do: a pod finds its volume on whichever node it starts.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import PartError

CLASS = "rig"
_PROVISIONER = "rig.example.invalid/folder"
_PAUSE_S = 0.5
_USER = 10_001


class Volumes:
    """Makes volumes for claims, grows them, and deletes those that are released.

    Args:
        control: the control plane.
        folder: of the volumes.
    """

    def __init__(self, control: Control, folder: Path) -> None:
        self._control = control
        self.folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volumes", daemon=True)

    def start(self) -> None:
        """Make the storage class and begin."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._control.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {
                    "name": CLASS,
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": _PROVISIONER,
                "allowVolumeExpansion": True,
                "volumeBindingMode": "Immediate",
            }
        )
        self._thread.start()

    def stop(self) -> None:
        """End, if it has begun."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            try:
                self._once()
            except PartError as error:
                print(f"volumes: {error}", flush=True)

    def _once(self) -> None:
        for claim in self._control.get("pvc", "-A").get("items", []):
            wanted = claim["spec"]["resources"]["requests"]["storage"]
            held = claim.get("status", {}).get("capacity", {}).get("storage")
            if claim["status"]["phase"] == "Pending" and not claim["spec"].get("volumeName"):
                self._make(claim, wanted)
            elif held and held != wanted:
                self._grow(claim, wanted)
        for volume in self._control.get("pv").get("items", []):
            if volume["status"].get("phase") == "Released":
                self._control.kubectl("delete", "pv", volume["metadata"]["name"], "--wait=false")
                shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)

    def _make(self, claim: dict[str, Any], size: str) -> None:
        metadata = claim["metadata"]
        name = f"pv-{metadata['uid']}"
        path = self.folder / name
        path.mkdir(exist_ok=True)
        shutil.chown(path, _USER, _USER)
        self._control.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(path), "type": "Directory"},
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "name": metadata["name"],
                        "namespace": metadata["namespace"],
                        "uid": metadata["uid"],
                    },
                },
            }
        )

    def _grow(self, claim: dict[str, Any], size: str) -> None:
        """Do what a resizer does: the volume first, then the claim's status."""
        patch = json.dumps({"spec": {"capacity": {"storage": size}}})
        self._control.kubectl("patch", "pv", claim["spec"]["volumeName"], "-p", patch)
        metadata = claim["metadata"]
        status = json.dumps({"status": {"capacity": {"storage": size}}})
        self._control.kubectl(
            *("patch", "pvc", metadata["name"], "-n", metadata["namespace"]),
            *("--subresource=status", "-p", status),
        )
