"""The metadata as every process except the nameservers sees it.

`MetadataClient` calls the leader, `MetadataFollower` keeps sinks up to date (`ClusterView` in
memory, `MetadataCache` on disk), `CachedMetaServicer` serves a copy, `NodePresence` registers a
node and sends its heartbeats. `rows` and `watch` are shared with the nameservers.
"""

from strata_metadata.cache import FrozenMetadata, MetadataCache
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_metadata.follower import MetadataFollower, MetadataSink
from strata_metadata.options import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
    WatchOptions,
)
from strata_metadata.presence import NodePresence
from strata_metadata.servicer import META_SERVICE, CachedMetaServicer
from strata_metadata.topic_ids import StoredTopics
from strata_metadata.view import ClusterView

__all__ = [
    "META_SERVICE",
    "CachedMetaServicer",
    "ClusterView",
    "FrozenMetadata",
    "MetaRefused",
    "MetadataCache",
    "MetadataClient",
    "MetadataClientOptions",
    "MetadataFollower",
    "MetadataFollowerOptions",
    "MetadataSink",
    "NodePresence",
    "PresenceOptions",
    "StoredTopics",
    "WatchOptions",
]
