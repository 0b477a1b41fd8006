"""The commands of `strata transaction`; `id`, `topic` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View, message_view

Id = Annotated[str, Parameter(help="Transaction id; with --topic a message id.")]
Topic = Annotated[str, Parameter(help="Name of the topic that holds the message with this id.")]

_MAX_PAGE = 1_000

app = App(name="transaction", help="Transactions that wait for their producer's decision.")


@app.command(name="list")
def list_(
    *,
    topic: Annotated[str, Parameter(help="Only of this topic.")] = "",
    count: int = 100,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """List transactions that are neither committed nor rolled back, by their next check.

    For instance: strata transaction list --topic orders

    Args:
        count: Most transactions to list.
        all_namespaces: List the transactions of every namespace.
    """
    if count < 1:
        raise UsageError(f"--count {count}: ask for at least one transaction")
    if all_namespaces and topic:
        raise UsageError("give --topic or --all-namespaces, not both")
    request = admin_pb2.ListTransactionsRequest(topic=topic)
    if not all_namespaces:
        request.namespace = common.namespace
    found: list[View] = []
    with connect(common) as client:
        while True:
            request.page_size = min(count - len(found), _MAX_PAGE)
            response = client.call(client.admin.ListTransactions, request)
            found.extend(map(transaction_view, response.transactions))
            if not response.next_page_token or len(found) >= count:
                break
            request.page_token = response.next_page_token
    columns = ("transaction_id", "message_id", "topic", "check_count", "next_check_ms")
    show({"transactions": found}, common, rows="transactions", columns=columns)


@app.command(name="show")
def show_(id: Id, /, *, topic: Topic = "", common: Common = COMMON) -> None:
    """Show a waiting transaction and its message.

    For instance: strata transaction show 0102FC00000001476B0B12F80A00000000 --topic orders
    """
    request = admin_pb2.GetTransactionRequest(id=id, namespace=common.namespace, topic=topic)
    with connect(common) as client:
        transaction = client.call(client.admin.GetTransaction, request).transaction
    view = transaction_view(transaction)
    message = message_view(definition_pb2.Message.FromString(transaction.message))
    for key in ("tag", "keys", "body", "body_base64", "message_group", "properties"):
        view[key] = message[key]
    view["message_id"] = message["message_id"]
    view["born_time_ms"] = message["born_time_ms"]
    show(view, common)


@app.command
def commit(id: Id, /, *, topic: Topic = "", common: Common = COMMON) -> None:
    """Commit a transaction on behalf of its producer: its message is delivered.

    For instance: strata transaction commit 0102FC00000001476B0B12F80A00000000 --topic orders
    """
    _end(id, topic, common, admin_pb2.TRANSACTION_RESOLUTION_COMMIT, "committed")


@app.command
def rollback(id: Id, /, *, topic: Topic = "", common: Common = COMMON) -> None:
    """Roll back a transaction on behalf of its producer: its message is never delivered.

    For instance: strata transaction rollback 0102FC00000001476B0B12F80A00000000 --topic orders
    """
    _end(id, topic, common, admin_pb2.TRANSACTION_RESOLUTION_ROLLBACK, "rolled back")


def transaction_view(transaction: admin_pb2.Transaction) -> View:
    """Return a transaction without its message."""
    return {
        "transaction_id": transaction.transaction_id,
        "message_id": transaction.message_id,
        "namespace": transaction.namespace,
        "topic": transaction.topic,
        "raft_group": transaction.raft_group,
        "store_time_ms": transaction.store_time_ms,
        "check_count": transaction.check_count,
        "next_check_ms": transaction.next_check_ms,
    }


def _end(
    id: str,
    topic: str,
    common: Common,
    resolution: admin_pb2.TransactionResolution.ValueType,
    result: str,
) -> None:
    request = admin_pb2.EndTransactionRequest(
        id=id, namespace=common.namespace, topic=topic, resolution=resolution
    )
    with connect(common) as client:
        client.call(client.admin.EndTransaction, request)
    show({"id": id, "result": result}, common)
