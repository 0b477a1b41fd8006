"""The quotas' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import current_principal, topic_target
from strata_broker.metadata.quotas import LimitInForce
from strata_broker.operators.quotas import QuotaOperations
from strata_broker.servicers.pages import page
from strata_mq.access import ResourceKind


class QuotaAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: QuotaOperations) -> None:
        self._operations = operations

    async def set_quota(self, request: admin_pb2.SetQuotaRequest) -> admin_pb2.SetQuotaResponse:
        """Set limits of a namespace or of a topic."""
        limits = await self._operations.set(request.quota, request.update_mask)
        return admin_pb2.SetQuotaResponse(limits=_messages(limits))

    async def get_quota(self, request: admin_pb2.GetQuotaRequest) -> admin_pb2.GetQuotaResponse:
        """Show the limits in force for a namespace or a topic."""
        limits = self._operations.get(request.namespace, request.topic)
        return admin_pb2.GetQuotaResponse(limits=_messages(limits))

    async def list_quotas(
        self, request: admin_pb2.ListQuotasRequest
    ) -> admin_pb2.ListQuotasResponse:
        """List the limits that were set, by namespace and topic."""
        namespace = request.namespace if request.HasField("namespace") else None
        rows, token = page(
            (
                ((row.namespace, row.topic), row)
                for row in self._operations.list()
                if (namespace is None or row.namespace == namespace) and _is_seen(row)
            ),
            request.page_size,
            request.page_token,
        )
        return admin_pb2.ListQuotasResponse(quotas=rows, next_page_token=token)


def _is_seen(row: meta_pb2.Quota) -> bool:
    if row.topic:
        return current_principal().may_see(*topic_target((row.namespace, row.topic)))
    return current_principal().may_see(ResourceKind.NAMESPACE, ("", row.namespace))


def _messages(limits: Iterable[LimitInForce]) -> Iterable[admin_pb2.QuotaLimit]:
    return (admin_pb2.QuotaLimit(**limit._asdict()) for limit in limits)
