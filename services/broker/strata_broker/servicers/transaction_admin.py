"""The transactions' part of `strata.admin.v1.AdminService`."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.operators.transactions import TransactionOperations


class TransactionAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: TransactionOperations) -> None:
        self._operations = operations

    async def list_transactions(
        self, request: admin_pb2.ListTransactionsRequest
    ) -> admin_pb2.ListTransactionsResponse:
        """List waiting transactions."""
        transactions, token = await self._operations.page(request)
        return admin_pb2.ListTransactionsResponse(transactions=transactions, next_page_token=token)

    async def get_transaction(
        self, request: admin_pb2.GetTransactionRequest
    ) -> admin_pb2.GetTransactionResponse:
        """Show a transaction with its message."""
        return admin_pb2.GetTransactionResponse(transaction=await self._operations.get(request))

    async def end_transaction(
        self, request: admin_pb2.EndTransactionRequest
    ) -> admin_pb2.EndTransactionResponse:
        """Commit a transaction or roll it back."""
        ended = await self._operations.end(request)
        return admin_pb2.EndTransactionResponse(queue=ended.queue, offset=ended.offset)
