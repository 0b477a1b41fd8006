"""Cluster of a process, compared at every connection between processes (rule 32).

Each side of a handshake names its cluster. If both know their clusters and these differ, the
connection ends at once and each side logs it, at a limited rate. A process without a cluster names
none: it may ask the nodes in its configuration and joins the cluster that accepts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strata_angelia.ports import WRONG_CLUSTER, AngeliaError
from strata_runtime.errors import StrataError
from strata_runtime.logs import get_logger

CLUSTER_HEADER = "angelia-cluster"
"""Header in which a caller over http2 names its cluster."""

_WARN_EVERY_S = 60.0
_WARNED_MAX = 64
_SHOWN = 64


class WrongCluster(StrataError):
    """A process was told to belong to another cluster than it does."""


class ClusterId:
    """The cluster of a process; one object for all its channels and servers.

    Args:
        value: the id; empty: it belongs to none yet.
        monotonic_s: time.
    """

    def __init__(self, value: str = "", monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._value = value
        self._monotonic_s = monotonic_s
        # Foreign cluster -> when it was last written about.
        self._warned: dict[str, float] = {}
        self._logger = get_logger("cluster")

    @property
    def value(self) -> str:
        """The id; empty: none is known yet."""
        return self._value

    def learn(self, value: str) -> None:
        """Take in which cluster it is; empty says nothing.

        Raises:
            WrongCluster: it is known, and another one.
        """
        if not self.agrees(value):
            raise WrongCluster(f"this process belongs to cluster {self._value}, not {value}")
        self._value = self._value or value

    def agrees(self, other: str) -> bool:
        """Whether a peer's id does not contradict; an empty id does not."""
        return not other or not self._value or other == self._value

    def check(self, other: str, peer: str) -> None:
        """Refuse a peer of another cluster.

        Args:
            other: id that the peer says; empty: none.
            peer: its address.

        Raises:
            AngeliaError: WRONG_CLUSTER.
        """
        if self.agrees(other):
            return
        other = other[:_SHOWN]
        self._warn(other, peer)
        raise AngeliaError(
            WRONG_CLUSTER, f"{peer} belongs to cluster {other}, this process to {self._value}"
        )

    def _warn(self, other: str, peer: str) -> None:
        now_s = self._monotonic_s()
        if now_s - self._warned.get(other, -_WARN_EVERY_S) < _WARN_EVERY_S:
            return
        if len(self._warned) >= _WARNED_MAX:
            self._warned.clear()
        self._warned[other] = now_s
        self._logger.warning(
            "a process of another cluster was refused", peer=peer, cluster=other, own=self._value
        )


def own(cluster: ClusterId | None) -> ClusterId:
    """Return what was given, or that of a process which belongs to no cluster."""
    return cluster or ClusterId()
