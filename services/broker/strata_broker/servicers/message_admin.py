"""The messages' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.access.principals import current_principal
from strata_broker.metadata.metadata import MetadataView
from strata_broker.operators.dead_letters import DeadLetters
from strata_broker.operators.message_queries import MessageQueries, found_message
from strata_broker.operators.redrive import Redriver
from strata_broker.servicers.pages import page_of_names
from strata_broker.storage_client.holder_calls import gather
from strata_mq.access import ResourceKind

# Dead-letter topics: each is counted in every raft group.
_COUNTED_AT_ONCE = 64


class MessageAdminServicer:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        queries: MessageQueries,
        dead_letters: DeadLetters,
        *,
        redriver: Redriver,
    ) -> None:
        self._view = view
        self._queries = queries
        self._dead_letters = dead_letters
        self._redriver = redriver

    async def find_messages(
        self, request: admin_pb2.FindMessagesRequest
    ) -> admin_pb2.FindMessagesResponse:
        """Find messages; consumes nothing."""
        found = await self._queries.find(request)
        return admin_pb2.FindMessagesResponse(
            messages=map(found_message, found.messages), next_page_token=found.next_page_token
        )

    async def trace_message(
        self, request: admin_pb2.TraceMessageRequest
    ) -> admin_pb2.TraceMessageResponse:
        """Show the trace of a message."""
        return admin_pb2.TraceMessageResponse(messages=await self._queries.trace(request))

    async def list_dead_letter_topics(
        self, request: admin_pb2.ListDeadLetterTopicsRequest
    ) -> admin_pb2.ListDeadLetterTopicsResponse:
        """List dead-letter topics by namespace and consumer group, with counts."""
        namespace = request.namespace if request.HasField("namespace") else None
        principal = current_principal()
        names, token = await page_of_names(
            self._view.consumer_group_names,
            lambda name: principal.may_see(ResourceKind.GROUP, name),
            min(request.page_size or _COUNTED_AT_ONCE, _COUNTED_AT_ONCE),
            request.page_token,
            namespace=namespace,
        )
        groups = [self._view.consumer_group(*name) for name in names]
        topics = await gather(
            [self._dead_letters.count(group) for group in groups if group is not None]
        )
        return admin_pb2.ListDeadLetterTopicsResponse(
            topics=[topic for topic in topics if topic is not None], next_page_token=token
        )

    async def list_dead_letters(
        self, request: admin_pb2.ListDeadLettersRequest
    ) -> admin_pb2.ListDeadLettersResponse:
        """List the messages of one dead-letter topic."""
        found = await self._dead_letters.page(
            (request.namespace, request.consumer_group), request.max_messages, request.page_token
        )
        return admin_pb2.ListDeadLettersResponse(
            dead_letters=(
                admin_pb2.DeadLetter(stored=found_message(letter.stored), redriven=letter.redriven)
                for letter in found.letters
            ),
            next_page_token=found.next_page_token,
        )

    async def redrive_dead_letters(
        self, request: admin_pb2.RedriveDeadLettersRequest
    ) -> admin_pb2.RedriveDeadLettersResponse:
        """Send dead letters back to the topics they came from."""
        return await self._redriver.redrive(request)
