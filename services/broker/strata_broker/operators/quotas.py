"""Operators' requests about quotas: set limits, show those in force, list those that were set."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strata.meta.v1 import meta_pb2
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.quotas import LimitInForce, Quotas
from strata_metadata.client import MetadataClient


class QuotaOperations:
    """See the module docstring."""

    def __init__(
        self, view: MetadataView, meta: MetadataClient, quotas: Quotas, *, config: MetadataSection
    ) -> None:
        self._view = view
        self._meta = meta
        self._quotas = quotas
        self._timeout_s = config.call_timeout_ms / 1000

    async def set(self, quota: meta_pb2.Quota, update_mask: Sequence[str]) -> list[LimitInForce]:
        """Set limits; this broker applies them when the call returns.

        Raises:
            MetaRefused: unknown topic, a limit that the subject cannot have, or too many rows.
            AngeliaError: no nameserver answers.
        """
        request = meta_pb2.SetQuotaRequest(quota=quota, update_mask=update_mask)
        response = await self._meta.call("SetQuota", request, meta_pb2.SetQuotaResponse)
        await self._view.wait_for_revision(response.quota.revision, self._timeout_s)
        return self._quotas.limits(quota.namespace, quota.topic)

    def get(self, namespace: str, topic: str) -> list[LimitInForce]:
        """Return the limits in force for a topic, or ("") for a namespace as a whole.

        Raises:
            RequestError: TOPIC_NOT_FOUND.
        """
        if topic and self._view.topic(namespace, topic) is None:
            raise topic_not_found(topic)
        return self._quotas.limits(namespace, topic)

    def list(self) -> Collection[meta_pb2.Quota]:
        """Return the limits that were set, in no order."""
        return self._view.quotas()
