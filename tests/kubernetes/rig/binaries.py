"""Where the parts of Kubernetes are, and what runs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("STRATA_KUBERNETES_BIN", ROOT / "build" / "kubernetes" / "bin"))

SERVER = ("etcd", "kube-apiserver", "kubectl", "helm")
"""Enough for a dry run at a real API server."""
PODS = (*SERVER, "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
_SYSTEM = ("containerd", "ctr", "runc", "iptables", "ip", "nsenter", "unshare", "conntrack")

HOW = "make kubernetes-parts builds it (needs Go; real pods need root, containerd and runc)"


def missing(*, pods: bool) -> str:
    """Return what is missing and how to get it; empty: nothing is.

    Args:
        pods: real pods are wanted, not only an API server.
    """
    for name in PODS if pods else SERVER:
        if not (FOLDER / name).exists():
            return f"{name} is missing: {HOW}"
    for name in _SYSTEM if pods else ():
        if shutil.which(name) is None:
            return f"{name} is missing: {HOW}"
    return "" if not pods or os.geteuid() == 0 else f"real pods need root: {HOW}"


def program(name: str) -> str:
    """Return the path of a part."""
    return str(FOLDER / name)
