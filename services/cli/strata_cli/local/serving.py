"""Checks whether a whole cluster serves: a broker answers, and every raft group has a leader."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.errors import CliError
from strata_cli.options import Common

_CALL_TIMEOUT = "2s"
_POLL_S = 0.1


FIRST_ADMIN_FILE = "first-admin.json"
"""File of a nameserver's folder: the keys of the first admin."""


def keys_of(folder: Path, common: Common) -> Common:
    """Return options with keys for a cluster in a folder: those given, or the first admin's."""
    if common.access_key:
        return common
    for file in sorted(folder.glob(f"*/{FIRST_ADMIN_FILE}")):
        with suppress(OSError, ValueError, KeyError):
            keys = json.loads(file.read_text(encoding="utf-8"))
            return replace(common, access_key=keys["access_key"], secret_key=keys["secret_key"])
    return common


def wait_until_served(endpoint: str, timeout_s: float, keys: Common) -> None:
    """Wait until a broker says that there are raft groups and that each has a leader.

    Args:
        endpoint: host:port of a broker, or of the forwarder before them.
        timeout_s: how long.
        keys: who asks, where the cluster controls access.

    Raises:
        CliError: it does not in time; the message says what is missing.
    """
    deadline_s = time.monotonic() + timeout_s
    while missing := _missing(endpoint, keys):
        if time.monotonic() >= deadline_s:
            raise CliError(f"the cluster did not serve within {timeout_s:g} s: {missing}")
        time.sleep(_POLL_S)


def _missing(endpoint: str, keys: Common) -> str:
    """Return what is missing; empty: nothing."""
    try:
        with connect(replace(keys, endpoint=endpoint, timeout=_CALL_TIMEOUT)) as client:
            cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    except CliError as error:
        return str(error)
    if not cluster.raft_groups:
        return "there is no raft group yet"
    leaderless = [str(h.raft_group) for h in cluster.raft_groups if not h.leader_node_id]
    return f"raft groups without a leader: {', '.join(leaderless)}" if leaderless else ""
