"""Lists of all topics and consumer groups that remoting clients can see, page after page."""

from __future__ import annotations

from collections.abc import Sequence

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.exchange import Exchange
from strata_mq.requests import TABLE_PREFIX

_PAGE = 10_000


class ResourceListing:
    """See the module docstring; remoting clients see the default namespace.

    Args:
        face: the broker's handlers for operators.
    """

    def __init__(self, face: OperatorFace) -> None:
        self._face = face

    async def topics(self, exchange: Exchange) -> Sequence[meta_pb2.Topic]:
        """Return the topics that hold messages, by name.

        Raises:
            RemotingRefusal: the call was refused.
        """
        found: list[meta_pb2.Topic] = []
        token = ""
        while True:
            answer = await self._face.call(
                "ListTopics",
                admin_pb2.ListTopicsRequest(
                    namespace="", page_size=_PAGE, page_token=token, include_system=True
                ),
                admin_pb2.ListTopicsResponse,
                exchange.caller(),
            )
            found += (row for row in answer.topics if not row.name.startswith(TABLE_PREFIX))
            token = answer.next_page_token
            if not token:
                return found

    async def groups(self, exchange: Exchange) -> Sequence[meta_pb2.ConsumerGroup]:
        """Return the consumer groups, by name.

        Raises:
            RemotingRefusal: the call was refused.
        """
        found: list[meta_pb2.ConsumerGroup] = []
        token = ""
        while True:
            answer = await self._face.call(
                "ListConsumerGroups",
                admin_pb2.ListConsumerGroupsRequest(
                    namespace="", page_size=_PAGE, page_token=token
                ),
                admin_pb2.ListConsumerGroupsResponse,
                exchange.caller(),
            )
            found += answer.consumer_groups
            token = answer.next_page_token
            if not token:
                return found

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
                    page_size=_PAGE,
                    page_token=token,
                ),
                admin_pb2.ListClientsResponse,
                exchange.caller(),
            )
            found += answer.clients
            token = answer.next_page_token
            if not token:
                return found
