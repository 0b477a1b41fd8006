"""The lite topics' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.operators.lite_topics import LiteTopicLists


class LiteAdminServicer:
    """See the module docstring."""

    def __init__(self, lists: LiteTopicLists) -> None:
        self._lists = lists

    async def list_lite_topics(
        self, request: admin_pb2.ListLiteTopicsRequest
    ) -> admin_pb2.ListLiteTopicsResponse:
        """List the lite topics of a parent."""
        return await self._lists.page(request)
