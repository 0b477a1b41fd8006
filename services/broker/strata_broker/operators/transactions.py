"""Operators' requests about transactions: list those that wait, show one, end one.

A half message waits in the raft group that stored it, even if its topic's queues have moved, so
every raft group is asked. Failures are `RequestError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView
from strata_broker.sends.gathered_ends import EndedAt
from strata_broker.sends.transactions import Transactions, read_transaction_id
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.layout import unpack_message_id
from strata_mq.requests import Code, HandleForm, PendingHandle, RequestError

_DEFAULT_PAGE = 100
_MAX_PAGE = 1_000
# Most calls to a raft group for one page, if most transactions are of other topics or namespaces.
_MAX_ROUNDS = 10

_ENDS = {
    admin_pb2.TRANSACTION_RESOLUTION_COMMIT: storage_pb2.TRANSACTION_END_COMMIT,
    admin_pb2.TRANSACTION_RESOLUTION_ROLLBACK: storage_pb2.TRANSACTION_END_ROLLBACK,
}


class _Place(NamedTuple):
    """The place of a half message in the list; a page token is its text."""

    due_ms: int
    raft_group: int
    raft_index: int
    ordinal: int


# Digits of the largest number of 64 bits.
_MOST_DIGITS = 20
_START = _Place(0, 0, 0, 0)
_LAST = storage_pb2.PendingRef(index=(1 << 64) - 1)


class TransactionOperations:
    """See the module docstring."""

    def __init__(
        self, view: MetadataView, storage: StorageClient, transactions: Transactions
    ) -> None:
        self._view = view
        self._storage = storage
        self._transactions = transactions

    async def page(
        self, request: admin_pb2.ListTransactionsRequest
    ) -> tuple[Sequence[admin_pb2.Transaction], str]:
        """Return a page of waiting transactions, and the token of the next page ("" at the end).

        Raises:
            RequestError: unknown topic, not a token, or a raft group does not answer.
        """
        topic_id = 0
        if request.topic:
            topic_id = self._topic_id(request.namespace, request.topic)
        size = min(request.page_size or _DEFAULT_PAGE, _MAX_PAGE)
        after = _place_of(request.page_token)
        page: list[admin_pb2.Transaction] = []
        for _ in range(_MAX_ROUNDS):
            halves, known_to = await self._halves(topic_id, after, size)
            for place, half in halves:
                transaction = self._transaction(place.raft_group, half)
                if not request.HasField("namespace") or transaction.namespace == request.namespace:
                    page.append(transaction)
                if len(page) == size:
                    return page, _token(place)
            if known_to is None:
                return page, ""
            after = known_to
        return page, _token(after)

    async def get(self, request: admin_pb2.GetTransactionRequest) -> admin_pb2.Transaction:
        """Return a transaction with its message.

        Raises:
            RequestError: INVALID_TRANSACTION_ID: it ended or does not exist; unknown topic.
        """
        handle = await self._handle(request.id, request.namespace, request.topic)
        only = storage_pb2.ListPendingRequest(
            raft_group=handle.raft_group,
            kind=storage_pb2.PENDING_KIND_HALF,
            topic_id=handle.topic_id,
            max_messages=1,
            with_messages=True,
        )
        if handle.form is HandleForm.PENDING:
            only.pending.index, only.pending.ordinal = handle.number, handle.part
        else:
            only.message_id = handle.message_id
        for half in (await self._list_pending(only)).messages:
            if half.kind == storage_pb2.PENDING_KIND_HALF:
                transaction = self._transaction(handle.raft_group, half)
                transaction.message = half.message
                return transaction
        raise _not_waiting()

    async def end(self, request: admin_pb2.EndTransactionRequest) -> EndedAt:
        """Commit or roll back; a repeat is fine.

        Raises:
            RequestError: INVALID_TRANSACTION_ID: it does not exist, or ended the other way;
                BAD_REQUEST: neither commit nor rollback; unknown topic.
        """
        end = _ENDS.get(request.resolution)
        if end is None:
            raise RequestError(Code.BAD_REQUEST, "no decision: name commit or rollback")
        handle = await self._handle(request.id, request.namespace, request.topic)
        return await self._transactions.resolve(handle, end)

    async def _handle(self, text: str, namespace: str, topic: str) -> PendingHandle:
        """Return the handle of a half message, from the producer's id or by its message id."""
        if not topic:
            return read_transaction_id(text, self._transactions.handles)
        topic_id = self._topic_id(namespace, topic)
        answers = await self._ask_all(
            storage_pb2.ListPendingRequest(
                kind=storage_pb2.PENDING_KIND_HALF,
                topic_id=topic_id,
                max_messages=1,
                message_id=text,
            )
        )
        for raft_group, answer in answers:
            for half in answer.messages:
                if half.kind == storage_pb2.PENDING_KIND_HALF:
                    return _named(raft_group, half)
        raise _not_waiting()

    async def _halves(
        self, topic_id: int, after: _Place, most: int
    ) -> tuple[Sequence[tuple[_Place, storage_pb2.PendingMessage]], _Place | None]:
        """Return all half messages behind a place, in order, up to a second place; None: all."""
        answers = await self._ask_all(
            storage_pb2.ListPendingRequest(
                kind=storage_pb2.PENDING_KIND_HALF, topic_id=topic_id, max_messages=most
            ),
            after,
        )
        # Half messages that one raft group has not sent yet may come before those of another one.
        known_to = min(
            (
                _place(number, answer.next_after_due_ms, answer.next_after)
                for number, answer in answers
                if answer.HasField("next_after")
            ),
            default=None,
        )
        halves = (
            (_place(number, half.due_ms, half.pending), half)
            for number, answer in answers
            for half in answer.messages
        )
        known = [each for each in halves if known_to is None or each[0] <= known_to]
        return sorted(known, key=lambda each: each[0]), known_to

    async def _ask_all(
        self, request: storage_pb2.ListPendingRequest, after: _Place = _START
    ) -> list[tuple[int, storage_pb2.ListPendingResponse]]:
        """Ask all raft groups at once, with one call for each."""
        numbers = [row.raft_group for row in self._view.raft_groups()]
        requests = [_behind(request, number, after) for number in numbers]
        answers = await asyncio.gather(*map(self._list_pending, requests))
        return list(zip(numbers, answers, strict=True))

    async def _list_pending(
        self, request: storage_pb2.ListPendingRequest
    ) -> storage_pb2.ListPendingResponse:
        try:
            return await self._storage.call(
                request.raft_group, "ListPending", request, storage_pb2.ListPendingResponse
            )
        except RequestError as refused:
            if refused.code is Code.INVALID_RECEIPT_HANDLE:
                # No message has this id.
                return storage_pb2.ListPendingResponse()
            raise

    def _topic_id(self, namespace: str, name: str) -> int:
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        return topic.topic_id

    def _transaction(
        self, raft_group: int, half: storage_pb2.PendingMessage
    ) -> admin_pb2.Transaction:
        topic = self._view.topic_by_id(half.topic_id)
        handle = _named(raft_group, half)
        return admin_pb2.Transaction(
            transaction_id=self._transactions.handles.pending(handle),
            message_id=handle.message_id,
            namespace=topic.namespace if topic is not None else "",
            topic=topic.name if topic is not None else "",
            raft_group=raft_group,
            store_time_ms=half.store_time_ms,
            check_count=half.check_count,
            next_check_ms=half.due_ms,
        )


def _named(raft_group: int, half: storage_pb2.PendingMessage) -> PendingHandle:
    """Return the id of a half message, in its producer's form if storage keeps it unchanged."""
    message_id = unpack_message_id(half.packed_message_id)
    if message_id is not None:
        return PendingHandle(raft_group, half.topic_id, message_id)
    place = half.pending
    return PendingHandle(
        raft_group, half.topic_id, "", HandleForm.PENDING, place.index, place.ordinal
    )


def _place(raft_group: int, due_ms: int, pending: storage_pb2.PendingRef) -> _Place:
    return _Place(due_ms, raft_group, pending.index, pending.ordinal)


def _behind(
    request: storage_pb2.ListPendingRequest, raft_group: int, after: _Place
) -> storage_pb2.ListPendingRequest:
    """Return a request for a raft group's half messages behind a place in the list of all."""
    one = storage_pb2.ListPendingRequest()
    one.CopyFrom(request)
    one.raft_group = raft_group
    one.after_due_ms = after.due_ms
    if raft_group == after.raft_group:
        one.after.index, one.after.ordinal = after.raft_index, after.ordinal
    elif raft_group < after.raft_group:
        # Transactions that are due at the same time are on the page before.
        one.after.CopyFrom(_LAST)
    return one


def _token(place: _Place) -> str:
    return "-".join(map(str, place))


def _place_of(token: str) -> _Place:
    if not token:
        return _START
    fields = token.split("-")
    if len(fields) != len(_START) or not all(map(_is_number, fields)):
        raise RequestError(Code.BAD_REQUEST, "not a page token of this list")
    place = _Place(*map(int, fields))
    if max(place) >= 1 << 64 or max(place.raft_group, place.ordinal + 1) >= 1 << 32:
        raise RequestError(Code.BAD_REQUEST, "not a page token of this list")
    return place


def _is_number(text: str) -> bool:
    """Whether a text is a number that fits into 64 bits, or a little more."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _not_waiting() -> RequestError:
    return RequestError(
        Code.INVALID_TRANSACTION_ID, "no transaction waits under this id: it ended or never existed"
    )
