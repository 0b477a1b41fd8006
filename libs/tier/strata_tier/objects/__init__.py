"""Objects of the tier: their layout, names and costs; written and opened."""

from strata_tier.objects.archive import NO_RAFT_GROUP, ArchivedEntry, Description, encode_archive
from strata_tier.objects.blocks import Block, BlockColumns, MessageRun, SearchTerms, pick
from strata_tier.objects.costs import TopicCosts, put_requests
from strata_tier.objects.layout import BlockEntry, ObjectKind, checksum
from strata_tier.objects.names import (
    DEFAULT_SPACE,
    QUEUE_FOLDER,
    SET_FOLDER,
    ManifestName,
    check_home,
    checkpoint_key,
    manifest_key,
    metadata_key,
    metadata_prefix,
    object_folders,
    parse_object_key,
    space_prefix,
)
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.plan import (
    Author,
    ObjectPlan,
    PlannedBlock,
    PlanOptions,
    QueueRuns,
    plan_object,
)
from strata_tier.objects.spaces import Stores
from strata_tier.objects.state import (
    CommitRanges,
    DropRanges,
    DropTopics,
    ForgetObjects,
    ObjectRef,
    ReplaceRanges,
    TierChange,
    TieredObject,
    TieredRange,
    decode_change,
    encode_change,
)
from strata_tier.objects.writer import BlockData, ObjectWriter

__all__ = [
    "DEFAULT_SPACE",
    "NO_RAFT_GROUP",
    "QUEUE_FOLDER",
    "SET_FOLDER",
    "ArchivedEntry",
    "Author",
    "Block",
    "BlockColumns",
    "BlockData",
    "BlockEntry",
    "CommitRanges",
    "Description",
    "DropRanges",
    "DropTopics",
    "ForgetObjects",
    "ManifestName",
    "MessageRun",
    "ObjectKind",
    "ObjectPlan",
    "ObjectRef",
    "ObjectWriter",
    "OpenObject",
    "PlanOptions",
    "PlannedBlock",
    "QueueRuns",
    "ReplaceRanges",
    "SearchTerms",
    "Stores",
    "TierChange",
    "TieredObject",
    "TieredRange",
    "TopicCosts",
    "check_home",
    "checkpoint_key",
    "checksum",
    "decode_change",
    "encode_archive",
    "encode_change",
    "manifest_key",
    "metadata_key",
    "metadata_prefix",
    "object_folders",
    "parse_object_key",
    "pick",
    "plan_object",
    "put_requests",
    "space_prefix",
]
