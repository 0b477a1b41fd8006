"""`strata status`: the cluster on one screen, and the next command for each finding."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from strata.admin.v1 import admin_pb2
from strata_cli import lags
from strata_cli.advice import advice_for
from strata_cli.client import AdminClient, connect
from strata_cli.cluster_health import EXIT_CODES
from strata_cli.cluster_health import look as look_at_health
from strata_cli.cluster_views import node_views
from strata_cli.errors import CliError
from strata_cli.options import DEFAULT_ENDPOINT, Common
from strata_cli.output import show
from strata_cli.readable import printable
from strata_cli.views import View

_MAX_DEAD_LETTER_TOPICS = 20
"""Most consumer groups with dead letters that become findings."""

_PAGES = "docs/runbooks"
_PLURALS = {"nameserver": "nameservers", "storage": "storage nodes", "broker": "brokers"}
_ONE = {"storage": "storage node"}

Found = TypeVar("Found")


def gather(common: Common) -> View:
    """Return the state of the cluster as `strata status -o json` prints it."""
    health = look_at_health(common)
    report: View = {
        "status": health["status"],
        "exit_code": EXIT_CODES[health["status"]],
        "endpoint": common.endpoint,
        "broker": health["broker"],
        "version": "",
        "nodes": {},
        "raft_groups": health["raft_groups"],
        "topics": None,
        "consumer_groups": None,
        "metadata_age_ms": health["metadata_age_ms"],
        "checked_at_ms": health["checked_at_ms"],
    }
    problems = list(health["reasons"])
    if health["broker"]:
        with connect(common) as client:
            problems += _look_closer(client, report)
    report["findings"] = [_finding(problem, common) for problem in problems]
    return report


def print_status(report: View, common: Common) -> None:
    """Print a report of `gather`."""
    if common.for_programs:
        show(report, common)
        return
    broker = f"{report['broker']} at " if report["broker"] else ""
    version = f", version {report['version']}" if report["version"] else ""
    print(f"{report['status']}: {broker}{report['endpoint']}{version}")
    for name, text in _lines(report):
        print(f"  {name:<12}  {text}")
    for number, finding in enumerate(report["findings"], 1):
        what = " ".join(filter(None, (finding["kind"], finding["name"], finding["state"])))
        print(f"\n{number}. {finding['severity']}: {what.replace('_', ' ')}")
        if finding["detail"]:
            print(f"   {printable(finding['detail'])}")
        print(f"   next  {finding['next']}")
        print(f"   then  {finding['action']}")
        if finding["runbook"]:
            print(f"   page  {finding['runbook']}")
    if not report["findings"]:
        print("\nNothing to do.")


def connection_options(common: Common) -> str:
    """Return the options that a command needs to reach the same broker, with a space before.

    Options that the environment gives are left out, and secrets are never part of it.
    """
    options = []
    if common.profile and common.profile != os.environ.get("STRATA_PROFILE"):
        options += ["--profile", common.profile]
    elif not common.profile:
        usual = os.environ.get("STRATA_ENDPOINT") or DEFAULT_ENDPOINT
        if common.endpoint != usual:
            options += ["--endpoint", common.endpoint]
        if common.ca:
            options += ["--ca", common.ca]
        elif common.tls:
            options.append("--tls")
    if common.namespace and not common.profile:
        options += ["--namespace", common.namespace]
    return "".join(f" {shlex.quote(each)}" for each in options)


def _look_closer(client: AdminClient, report: View) -> list[View]:
    """Fill in counts, as far as the caller may see them; return notes as further findings."""
    admin, notes = client.admin, []

    def whole() -> admin_pb2.GetClusterResponse:
        return client.call(admin.GetCluster, admin_pb2.GetClusterRequest())

    def placement() -> admin_pb2.GetPlacementResponse:
        return client.call(admin.GetPlacement, admin_pb2.GetPlacementRequest())

    cluster = _if_allowed(whole)
    if cluster is not None:
        report["version"] = cluster.version
        if cluster.HasField("topic_count"):
            report["topics"] = cluster.topic_count
            report["consumer_groups"] = cluster.consumer_group_count
        loads = _if_allowed(placement) or admin_pb2.GetPlacementResponse()
        nodes = node_views(cluster, loads)
        roles = sorted({node["role"] for node in nodes})
        report["nodes"] = {
            role: dict(Counter(node["state"] for node in nodes if node["role"] == role))
            for role in roles
        }
        notes += [
            _note("node", each["node"], "SLOW", each["slow_reason"])
            for each in nodes
            if each["slow"]
        ]
    request = admin_pb2.ListDeadLetterTopicsRequest(page_size=lags.PAGE_SIZE)
    letters = _if_allowed(lambda: client.call(admin.ListDeadLetterTopics, request))
    waiting = [each for each in letters.topics if each.waiting] if letters is not None else []
    waiting.sort(key=lambda each: -each.waiting)
    for each in waiting[:_MAX_DEAD_LETTER_TOPICS]:
        detail = f"{each.waiting} dead letters were not redriven"
        if each.namespace:
            detail += f"; namespace {each.namespace}"
        notes.append(_note("dead_letters", each.consumer_group, "WAITING", detail))
        notes[-1]["namespace"] = each.namespace
    return notes


def _if_allowed(ask: Callable[[], Found]) -> Found | None:
    """Return an answer; None if it was refused or did not come, which health tells already."""
    try:
        return ask()
    except CliError as error:
        if error.code in ("refused", "unreachable", "not_found"):
            return None
        raise


def _note(kind: str, name: str, state: str, detail: str) -> View:
    return {"kind": kind, "name": name, "state": state, "severity": "note", "detail": detail}


def _finding(problem: View, common: Common) -> View:
    advice = advice_for(problem)
    command = advice.command + connection_options(common)
    if (namespace := problem.pop("namespace", "")) and namespace != common.namespace:
        command += f" --namespace {shlex.quote(namespace)}"
    page = f"{_PAGES}/{advice.runbook}.md" if advice.runbook else ""
    return {**problem, "next": command, "action": advice.action, "runbook": page}


def _lines(report: View) -> list[tuple[str, str]]:
    nodes = [
        f"{count} {(_ONE.get(role, role) if count == 1 else _PLURALS.get(role, role))} {state}"
        for role, states in report["nodes"].items()
        for state, count in states.items()
    ]
    groups = [f"{count} {state}" for state, count in report["raft_groups"].items() if count]
    lines = [("nodes", ", ".join(nodes)), ("raft groups", ", ".join(groups))]
    if report["topics"] is not None:
        lines.append(("topics", f"{report['topics']}"))
    if report["consumer_groups"] is not None:
        lines.append(("groups", f"{report['consumer_groups']}"))
    if report["broker"]:
        lines.append(("metadata", f"{report['metadata_age_ms']} ms old"))
    return [(name, text) for name, text in lines if text]
