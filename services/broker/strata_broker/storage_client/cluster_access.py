"""A broker's access to its cluster: what it knows of it, and its ways to ask and to change it."""

from __future__ import annotations

from dataclasses import dataclass

from strata_broker.metadata.first_uses import FirstUses
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.quotas import Quotas
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.storage_client.storage_tier import StorageTier
from strata_metadata.client import MetadataClient


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """See the module docstring.

    Attributes:
        view: the metadata as the broker has it.
        metadata: asks the nameservers for changes.
        storage: calls storage nodes.
        quotas: limits of namespaces and topics.
        first_uses: limits of what calls make by naming it.
        shown: waits until the other brokers know what this one knows.
    """

    view: MetadataView
    metadata: MetadataClient
    storage: StorageTier
    quotas: Quotas
    first_uses: FirstUses
    shown: ShownRevisions
