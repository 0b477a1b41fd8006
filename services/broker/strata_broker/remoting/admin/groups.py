"""Requests that make, change, delete and describe consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from strata.admin.v1 import admin_pb2
from strata_broker.remoting.admin.bodies import DATA_VERSION, long_table
from strata_broker.remoting.admin.group_configs import shown_group, wanted_group
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.operator_face import AlreadyThere, OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import RemotingRefusal, succeeded, with_body, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.json_bodies import objects_in, read_object
from strata_mq.access import Action
from strata_remoting import AdminCode, RemotingCommand, ResponseCode

_MASK = ("fifo", "max_attempts", "backoff")
_MOST_GROUPS = 256


class AdminGroups:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know consumer groups.
        listing: of all consumer groups.
        max_json_bytes: of the body of a request.
    """

    def __init__(
        self,
        face: OperatorFace,
        places: AdminPlaces,
        listing: ResourceListing,
        *,
        max_json_bytes: int,
    ) -> None:
        self._face = face
        self._places = places
        self._listing = listing
        self._max_json_bytes = max_json_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            AdminCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_all,
            AdminCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            AdminCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            AdminCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.configs,
        }

    async def put(self, exchange: Exchange) -> RemotingCommand:
        """Make or change a consumer group.

        Raises:
            RemotingError: the body cannot be read.
            RemotingRefusal: the group cannot be as it is wanted, or the call was refused.
        """
        await self._put(read_object(exchange.request.body, self._max_json_bytes), exchange)
        return succeeded(exchange.request)

    async def put_all(self, exchange: Exchange) -> RemotingCommand:
        """Make or change several consumer groups; those before the first refused one are made.

        Raises:
            RemotingError: the body cannot be read.
            RemotingRefusal: see `put`.
        """
        data = read_object(exchange.request.body, self._max_json_bytes)
        groups = objects_in(data, "groupConfigList")
        if len(groups) > _MOST_GROUPS:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"a request has at most {_MOST_GROUPS} groups"
            )
        for one in groups:
            await self._put(one, exchange)
        return succeeded(exchange.request)

    async def delete(self, exchange: Exchange) -> RemotingCommand:
        """Delete a consumer group; tools ask every broker, so a missing one is deleted.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the call was refused.
        """
        name = exchange.request.text("groupName")
        exchange.require_group(name, Action.DELETE)
        if self._places.view.consumer_group("", name) is not None:
            await self._face.call(
                "DeleteConsumerGroup",
                admin_pb2.DeleteConsumerGroupRequest(name=name),
                admin_pb2.DeleteConsumerGroupResponse,
                exchange.caller(),
                # It may be gone meanwhile.
                missing=ResponseCode.SUCCESS,
            )
        return succeeded(exchange.request)

    async def config(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the configuration of a consumer group.

        Raises:
            RemotingRefusal: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        found = await self._face.consumer_group(exchange.request.text("group"), exchange.caller())
        return with_json(exchange.request, shown_group(found.consumer_group))

    async def configs(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the configurations of all consumer groups.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        table = await self._listing.groups(exchange, lambda row: (row.name, shown_group(row)))
        head = {"dataVersion": DATA_VERSION, "forbiddenTable": {}}
        return with_body(exchange.request, await long_table(head, "subscriptionGroupTable", table))

    async def _put(self, data: dict[str, Any], exchange: Exchange) -> None:
        group = wanted_group(data)
        if self._places.view.consumer_group("", group.name) is None:
            # Another broker may have made it a moment ago.
            with suppress(AlreadyThere):
                await self._face.call(
                    "CreateConsumerGroup",
                    admin_pb2.CreateConsumerGroupRequest(consumer_group=group),
                    admin_pb2.CreateConsumerGroupResponse,
                    exchange.caller(),
                )
                return
        mask = _MASK if group.WhichOneof("backoff") else _MASK[:2]
        await self._face.call(
            "UpdateConsumerGroup",
            admin_pb2.UpdateConsumerGroupRequest(consumer_group=group, update_mask=mask),
            admin_pb2.UpdateConsumerGroupResponse,
            exchange.caller(),
            missing=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
