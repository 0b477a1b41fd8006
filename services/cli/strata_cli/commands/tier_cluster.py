"""The commands of `strata tier` that ask a running cluster.

The commands that read only the object store are in `tier`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.readable import topic_name
from strata_cli.views import View

RaftGroups = Annotated[
    list[int] | None,
    Parameter(negative="", help="Only this raft group; may be repeated. Default: all."),
]

app = App(name="tier", help="Tiered storage.")
app.command("strata_cli.commands.tier:inspect", name="inspect")
app.command("strata_cli.commands.tier:verify", name="verify")
app.command("strata_cli.commands.tier:scrub", name="scrub")
app.command("strata_cli.commands.tier:restore", name="restore")


@app.command
def status(*, common: Common = COMMON) -> None:
    """Show the progress of uploads to the tier per raft group; -o json adds the cost of topics.

    For instance: strata tier status -o json
    """
    with connect(common) as client:
        response = client.call(client.admin.GetTier, admin_pb2.GetTierRequest())
    rows = [_view(group) for group in response.raft_groups]
    columns = ("raft_group", "state", "objects", "object_bytes", "backlog_bytes", "oldest", "note")
    topics = _topics(response.raft_groups)
    if not common.for_programs:
        topics = [topic | {"name": topic_name(topic["name"])} for topic in topics]
    view: View = {"raft_groups": rows, "topics": topics}
    show(view, common, rows="raft_groups", columns=columns)


@app.command
def pause(*, raft_group: RaftGroups = None, common: Common = COMMON) -> None:
    """Pause uploads to the tier; messages stay in the log until uploads resume.

    For instance: strata tier pause
    """
    _pause(raft_group, common, paused=True)


@app.command
def resume(*, raft_group: RaftGroups = None, common: Common = COMMON) -> None:
    """Resume uploads to the tier.

    For instance: strata tier resume
    """
    _pause(raft_group, common, paused=False)


@app.command
def flush(*, raft_group: RaftGroups = None, common: Common = COMMON) -> None:
    """Upload waiting messages and a manifest now, for instance before maintenance or a restore.

    Raft groups are flushed one after the other; --timeout holds for each raft group.

    For instance: strata tier flush --timeout 5m
    """
    flushed: list[View] = []
    with connect(common) as client:
        wanted = raft_group
        if not wanted:
            response = client.call(client.admin.GetTier, admin_pb2.GetTierRequest())
            wanted = [group.raft_group for group in response.raft_groups]
        for each in wanted:
            request = admin_pb2.FlushTierRequest(raft_group=each)
            done = client.call(client.admin.FlushTier, request)
            flushed.append({"raft_group": each, "raft_index": done.raft_index})
    show({"raft_groups": flushed}, common, rows="raft_groups")


def _pause(raft_groups: list[int] | None, common: Common, *, paused: bool) -> None:
    request = admin_pb2.PauseTierRequest(raft_groups=raft_groups or (), paused=paused)
    with connect(common) as client:
        response = client.call(client.admin.PauseTier, request)
    show({"paused" if paused else "resumed": list(response.raft_groups)}, common)


def _view(group: admin_pb2.TierGroup) -> View:
    return {
        "raft_group": group.raft_group,
        "state": _state(group),
        "store": group.store,
        "queues": group.queues,
        "objects": group.objects,
        "object_bytes": group.object_bytes,
        "backlog_bytes": group.backlog_bytes,
        "oldest_ms": group.oldest_ms,
        "oldest": _time(group.oldest_ms),
        "note": group.unreachable or group.last_failure,
    }


def _topics(groups: Iterable[admin_pb2.TierGroup]) -> list[View]:
    """Add up the cost of topics in all raft groups."""
    found: dict[int, View] = {}
    for topic in (topic for group in groups for topic in group.topics):
        view = found.setdefault(topic.topic_id, {"topic_id": topic.topic_id, "name": ""})
        view["name"] = topic.name or view["name"]
        for key in ("put_requests", "get_requests"):
            view[key] = round(view.get(key, 0.0) + getattr(topic, key), 3)
        for key in ("uploaded_bytes", "downloaded_bytes"):
            view[key] = view.get(key, 0) + getattr(topic, key)
    return [found[topic_id] for topic_id in sorted(found)]


def _state(group: admin_pb2.TierGroup) -> str:
    if group.unreachable:
        return "UNREACHABLE"
    if not group.store:
        return "NONE"
    if group.paused:
        return "PAUSED"
    return "UPLOADING" if group.uploading_queues else "IDLE"


def _time(time_ms: int) -> str:
    if not time_ms:
        return ""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
