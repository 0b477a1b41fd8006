"""Lists of all topics and consumer groups that remoting clients can see, page after page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import Exchange
from strata_mq.requests import TABLE_PREFIX
from strata_remoting import ResponseCode

# A page is shown without a pause.
_PAGE = 1_000
_CLIENTS_PAGE = 10_000
# Room for the header of an answer and what is around its list.
_HEADER_BYTES = 512

Shown = TypeVar("Shown")


class ResourceListing:
    """See the module docstring; remoting clients see the default namespace.

    Args:
        face: the broker's handlers for operators.
        max_frame_bytes: of an answer.
    """

    def __init__(self, face: OperatorFace, *, max_frame_bytes: int) -> None:
        self._face = face
        self._max_frame_bytes = max_frame_bytes

    async def topics(
        self, exchange: Exchange, show: Callable[[meta_pb2.Topic], Shown | None]
    ) -> list[Shown]:
        """Return what an answer shows of the topics that hold messages, by name.

        Args:
            exchange: who asks.
            show: returns what the answer shows of a topic; None: nothing.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        found: list[Shown] = []
        token, size_bytes = "", 0
        while True:
            answer = await self._face.call(
                "ListTopics",
                admin_pb2.ListTopicsRequest(
                    namespace="", page_size=_PAGE, page_token=token, include_system=True
                ),
                admin_pb2.ListTopicsResponse,
                exchange.caller(),
            )
            rows = (row for row in answer.topics if not row.name.startswith(TABLE_PREFIX))
            page = [one for one in map(show, rows) if one is not None]
            size_bytes = self._larger(size_bytes, page)
            found += page
            token = answer.next_page_token
            if not token:
                return found
            await asyncio.sleep(0)

    async def groups(
        self, exchange: Exchange, show: Callable[[meta_pb2.ConsumerGroup], Shown]
    ) -> list[Shown]:
        """Return what an answer shows of the consumer groups, by name; see `topics`.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        found: list[Shown] = []
        token, size_bytes = "", 0
        while True:
            answer = await self._face.call(
                "ListConsumerGroups",
                admin_pb2.ListConsumerGroupsRequest(
                    namespace="", page_size=_PAGE, page_token=token
                ),
                admin_pb2.ListConsumerGroupsResponse,
                exchange.caller(),
            )
            page = [show(row) for row in answer.consumer_groups]
            size_bytes = self._larger(size_bytes, page)
            found += page
            token = answer.next_page_token
            if not token:
                return found
            await asyncio.sleep(0)

    def check_bytes(self, size_bytes: int) -> None:
        """Check that an answer fits into a frame.

        Raises:
            RemotingRefusal: it does not.
        """
        if size_bytes + _HEADER_BYTES > self._max_frame_bytes:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR,
                f"the answer has more than {self._max_frame_bytes} bytes "
                "(remoting.max_frame_bytes): ask for a topic or a group alone, or use the strata "
                "command",
            )

    def _larger(self, size_bytes: int, page: Sequence[object]) -> int:
        """Return the size of an answer with one more page, once it is checked."""
        size_bytes += len(json.dumps(page, separators=(",", ":")))
        self.check_bytes(size_bytes)
        return size_bytes

    async def clients(
        self,
        exchange: Exchange,
        *,
        group: str = "",
        topic: str = "",
        kind: admin_pb2.ClientKind.ValueType = admin_pb2.CLIENT_KIND_UNSPECIFIED,
    ) -> Sequence[admin_pb2.ConnectedClient]:
        """Return the clients that are connected to any broker, by id.

        Raises:
            RemotingRefusal: the call was refused.
        """
        found: list[admin_pb2.ConnectedClient] = []
        token = ""
        while True:
            answer = await self._face.call(
                "ListClients",
                admin_pb2.ListClientsRequest(
                    namespace="",
                    kind=kind,
                    topic=topic,
                    consumer_group=group,
                    page_size=_CLIENTS_PAGE,
                    page_token=token,
                ),
                admin_pb2.ListClientsResponse,
                exchange.caller(),
            )
            found += answer.clients
            token = answer.next_page_token
            if not token:
                return found
