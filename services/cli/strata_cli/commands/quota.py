"""The commands of `strata quota`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import connect
from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View

Topic = Annotated[str, Parameter(help="Name of the topic; default: the namespace as a whole.")]
Limit = Annotated[
    str | None, Parameter(help="A number, none (no limit) or default (the brokers' configuration).")
]

PAGE_SIZE = 1_000

_LIMITS = ("messages_per_s", "bytes_per_s", "topics", "consumer_groups", "connections")

app = App(name="quota", help="Limits of namespaces and topics.")


@app.command(name="set")
def set_(
    *,
    topic: Topic = "",
    messages_per_s: Limit = None,
    bytes_per_s: Limit = None,
    topics: Limit = None,
    groups: Limit = None,
    connections: Limit = None,
    common: Common = COMMON,
) -> None:
    """Set limits of a namespace or a topic; limits without an option stay as they are.

    Numbers of topics, consumer groups and connections can be limited for a namespace only.

    For instance: strata quota set --namespace shop --topic orders --messages-per-s 1000
    """
    wanted = {
        "messages_per_s": messages_per_s,
        "bytes_per_s": bytes_per_s,
        "topics": topics,
        "consumer_groups": groups,
        "connections": connections,
    }
    named = {name: text for name, text in wanted.items() if text is not None}
    if not named:
        raise UsageError("nothing to set: give at least one limit (see strata quota set --help)")
    quota = meta_pb2.Quota(namespace=common.namespace, topic=topic)
    for name, text in named.items():
        if text != "default":
            setattr(quota, name, _number(name, text))
    request = admin_pb2.SetQuotaRequest(quota=quota, update_mask=named)
    with connect(common) as client:
        response = client.call(client.admin.SetQuota, request)
    _show_limits(response.limits, topic, common)


@app.command(name="show")
def show_(*, topic: Topic = "", common: Common = COMMON) -> None:
    """Show the limits in force for a namespace or a topic, and their use.

    For instance: strata quota show --namespace shop -o json
    """
    request = admin_pb2.GetQuotaRequest(namespace=common.namespace, topic=topic)
    with connect(common) as client:
        response = client.call(client.admin.GetQuota, request)
    _show_limits(response.limits, topic, common)


@app.command(name="list")
def list_(
    *, all_namespaces: Annotated[bool, Parameter(negative="")] = False, common: Common = COMMON
) -> None:
    """List the limits that were set for a namespace and its topics.

    For instance: strata quota list --all-namespaces

    Args:
        all_namespaces: List the limits of every namespace.
    """
    request = admin_pb2.ListQuotasRequest(page_size=PAGE_SIZE)
    if not all_namespaces:
        request.namespace = common.namespace
    quotas: list[View] = []
    with connect(common) as client:
        while True:
            response = client.call(client.admin.ListQuotas, request)
            quotas.extend(map(quota_view, response.quotas))
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
    show({"quotas": quotas}, common, rows="quotas")


def quota_view(quota: meta_pb2.Quota) -> View:
    """Return the limits that were set; None: the default holds, 0: no limit."""
    limits = {
        name: getattr(quota, name) if quota.HasField(name) else None  # type: ignore[arg-type]
        for name in _LIMITS
    }
    return {"namespace": quota.namespace, "topic": quota.topic} | limits


def limit_view(limit: admin_pb2.QuotaLimit) -> View:
    """Return one limit in force; 0: no limit."""
    return {
        "name": limit.name,
        "limit": limit.limit,
        "is_default": limit.is_default,
        "broker_part": limit.part,
        "used": limit.used,
    }


def _show_limits(limits: Iterable[admin_pb2.QuotaLimit], topic: str, common: Common) -> None:
    view = {"namespace": common.namespace, "topic": topic, "limits": list(map(limit_view, limits))}
    show(view, common, rows="limits")


def _number(name: str, text: str) -> int:
    if text == "none":
        return 0
    if not text.isdecimal() or int(text) == 0 or int(text) >= 1 << 63:
        option = name.removeprefix("consumer_").replace("_", "-")
        raise UsageError(f"--{option} {text}: give a number above 0, none or default")
    return int(text)
