"""`strata cluster health`: asks a broker for the cluster's health and ends with an exit code."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.cluster_views import health_report
from strata_cli.errors import CliError
from strata_cli.options import Common, milliseconds
from strata_cli.output import show
from strata_cli.views import View

EXIT_CODES = {"healthy": 0, "degraded": 1, "down": 2}

_POLL_S = 0.5
_MAX_CALL_MS = 3_000
_COLUMNS = ("severity", "kind", "name", "state", "detail")


def run(common: Common, *, wait_s: float, watches: bool) -> int:
    """Show the health of the cluster; return the exit code of the last health that was shown.

    Args:
        common: the broker to ask.
        wait_s: how long to ask again while the cluster is not healthy.
        watches: ask again until Ctrl-C and show changes.
    """
    deadline_s = time.monotonic() + wait_s
    shown: View | None = None
    while True:
        report = look(common)
        is_last = report["status"] == "healthy" or time.monotonic() >= deadline_s
        if watches:
            if shown is None or _what_matters(report) != _what_matters(shown):
                _print(report, common)
                shown = report
        elif is_last:
            _print(report, common)
            return EXIT_CODES[report["status"]]
        sys.stdout.flush()
        time.sleep(_POLL_S)


def look(common: Common) -> View:
    """Return the health of the cluster; when no broker answers, the cluster counts as down."""
    timeout_ms = min(milliseconds(common.timeout), _MAX_CALL_MS)
    try:
        with connect(replace(common, timeout=f"{timeout_ms}ms")) as client:
            return health_report(client.call(client.admin.GetHealth, admin_pb2.GetHealthRequest()))
    except CliError as error:
        response = admin_pb2.GetHealthResponse(
            status="down", looked_at_ms=round(time.time() * 1_000)
        )
        response.problems.add(
            kind="broker",
            name=common.endpoint,
            state="UNREACHABLE",
            severity="down",
            detail=str(error),
        )
        return health_report(response)


def _what_matters(report: View) -> tuple[object, ...]:
    reasons = [(each["kind"], each["name"], each["state"]) for each in report["reasons"]]
    return report["status"], reasons


def _print(report: View, common: Common) -> None:
    if common.for_programs:
        show(report, common)
        return
    print(f"{report['status']}: {_counts(report)}" if report["raft_groups"] else report["status"])
    if report["reasons"]:
        show({"reasons": report["reasons"]}, common, rows="reasons", columns=_COLUMNS)


def _counts(report: View) -> str:
    groups = ", ".join(f"{count} {state}" for state, count in report["raft_groups"].items())
    nodes = ", ".join(f"{count} {state}" for state, count in sorted(report["nodes"].items()))
    return f"raft groups {groups}; nodes {nodes}"
