"""Where the parts of Kubernetes are, and what runs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("STRATA_KUBERNETES_BIN", ROOT / "build" / "kubernetes" / "bin"))
DEFINITIONS = FOLDER.parent / "definitions"
"""Kinds of operators, as each operator ships them."""

SERVER = ("etcd", "kube-apiserver", "kubectl", "helm")
"""Enough for a dry run at a real API server."""
SCHEDULING = (*SERVER, "kube-controller-manager", "kube-scheduler")
"""Enough for pods that get a node."""
CERTIFICATES = (*SERVER, "certmanager")
"""Enough for certificates by cert-manager."""
POLICIES = (*SERVER, "kuberouter")
"""Enough for network policies that are enforced."""
PODS = (*SCHEDULING, "kubelet", "kube-proxy", "coredns", "kuberouter")
"""Enough for real pods."""
_NETWORK = ("iptables", "ipset", "ip", "nsenter")
_CONTAINERS = ("containerd", "ctr", "runc", "unshare", "conntrack")

HOW = "make kubernetes-parts builds it (needs Go; real pods need root, containerd, runc, ipset)"
HOW_POLICIES = "network policies need root and Debian's iptables, ipset and iproute2"


def missing(*, pods: bool) -> str:
    """Return what is missing and how to get it; empty: nothing is.

    Args:
        pods: real pods are wanted, not only an API server.
    """
    return _missing(PODS, (*_NETWORK, *_CONTAINERS), HOW) if pods else missing_of(SERVER)


def missing_of(programs: tuple[str, ...]) -> str:
    """Return which program, or definition of an operator's kind, is missing and how to get it."""
    for name in programs:
        if not (FOLDER / name).exists():
            return f"{name} is missing: {HOW}"
    return "" if DEFINITIONS.is_dir() else f"operators' kinds are missing: {HOW}"


def missing_for_policies() -> str:
    """Return what enforced network policies miss and how to get it; empty: nothing."""
    return _missing(POLICIES, _NETWORK, HOW_POLICIES)


def _missing(programs: tuple[str, ...], commands: tuple[str, ...], how: str) -> str:
    if reason := missing_of(programs):
        return reason
    for name in commands:
        if shutil.which(name) is None:
            return f"{name} is missing: {how}"
    return "" if os.geteuid() == 0 else f"this needs root: {how}"


def program(name: str) -> str:
    """Return the path of a part."""
    return str(FOLDER / name)
