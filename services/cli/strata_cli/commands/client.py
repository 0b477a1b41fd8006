"""The commands of `strata client`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View
from strata_cli.watching import INTERVAL, Interval, Watch, look

_PAGE_SIZE = 1_000
_COLUMNS = (
    *("client_id", "client_type", "language", "version", "address"),
    *("consumer_group", "topics", "last_heartbeat_ms"),
)

app = App(name="client", help="Clients that are connected: producers and consumers.")


@app.command(name=["list", "ls"])
def list_(
    *,
    producers: Annotated[bool, Parameter(negative="")] = False,
    consumers: Annotated[bool, Parameter(negative="")] = False,
    topic: str = "",
    group: str = "",
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    common: Common = COMMON,
) -> None:
    """List the clients that are connected to any broker, with their topics.

    A client counts as connected until its brokers have not heard of it for a while.

    For instance: strata client list --producers --topic orders

    Args:
        producers: List producers only.
        consumers: List consumers only.
        topic: List clients that send to this topic or subscribe to it.
        group: List members of this consumer group.
        all_namespaces: List the clients of every namespace.
    """
    if producers and consumers:
        raise UsageError("give --producers or --consumers, not both")
    kind = admin_pb2.CLIENT_KIND_UNSPECIFIED
    if producers or consumers:
        kind = admin_pb2.CLIENT_KIND_PRODUCER if producers else admin_pb2.CLIENT_KIND_CONSUMER
    request = admin_pb2.ListClientsRequest(
        namespace=None if all_namespaces else common.namespace,
        kind=kind,
        topic=topic,
        consumer_group=group,
        page_size=_PAGE_SIZE,
    )
    with connect(common) as client:

        def draw() -> None:
            clients = _clients(client, request)
            show({"clients": clients}, common, rows="clients", columns=_COLUMNS)

        look(draw, common, watch=watch, interval=interval)


def _clients(client: AdminClient, request: admin_pb2.ListClientsRequest) -> list[View]:
    found: list[View] = []
    request.page_token = ""
    while True:
        response = client.call(client.admin.ListClients, request)
        found += map(_view, response.clients)
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token


def _view(client: admin_pb2.ConnectedClient) -> View:
    return {
        "client_id": client.client_id,
        "client_type": client.client_type,
        "language": client.language,
        "version": client.version,
        "address": client.address,
        "hostname": client.hostname,
        "namespace": client.namespace,
        "consumer_group": client.consumer_group,
        "topics": sorted({*client.topics, *client.subscriptions}),
        "subscriptions": dict(sorted(client.subscriptions.items())),
        "last_heartbeat_ms": client.last_heartbeat_ms,
    }
