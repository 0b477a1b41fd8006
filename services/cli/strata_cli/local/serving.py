"""Checks whether a whole cluster serves: a broker answers, and every raft group has a leader."""

from __future__ import annotations

import time

from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.options import CliError, Common

_CALL_TIMEOUT = "2s"
_POLL_S = 0.1


def wait_until_served(endpoint: str, timeout_s: float) -> None:
    """Wait until a broker says that there are raft groups and that each has a leader.

    Args:
        endpoint: host:port of a broker, or of the forwarder before them.
        timeout_s: how long.

    Raises:
        CliError: it does not in time; the message says what is missing.
    """
    deadline_s = time.monotonic() + timeout_s
    while missing := _missing(endpoint):
        if time.monotonic() >= deadline_s:
            raise CliError(f"the cluster did not serve within {timeout_s:g} s: {missing}")
        time.sleep(_POLL_S)


def _missing(endpoint: str) -> str:
    """Return what is missing; empty: nothing."""
    try:
        with connect(Common(endpoint=endpoint, timeout=_CALL_TIMEOUT)) as client:
            cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    except CliError as error:
        return str(error)
    if not cluster.raft_groups:
        return "there is no raft group yet"
    leaderless = [str(h.raft_group) for h in cluster.raft_groups if not h.leader_node_id]
    return f"raft groups without a leader: {', '.join(leaderless)}" if leaderless else ""
