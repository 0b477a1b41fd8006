"""Ranges assign offsets to objects: as rows, in manifests and in compactions."""

from strata_tier.ranges.compaction import (
    CompactionOptions,
    CompactionOutput,
    CompactionPlan,
    plan_compaction,
    plan_compactions,
    replaceable,
    standing_for,
)
from strata_tier.ranges.manifest import Manifest, encode_manifest, manifest_of
from strata_tier.ranges.metadata import ChangeError, TierMetadata, apply_change
from strata_tier.ranges.metadata_memory import MemoryTierMetadata
from strata_tier.ranges.metadata_mirrored import MirroredTierMetadata
from strata_tier.ranges.metadata_rows import RowTierMetadata
from strata_tier.ranges.retention import TierRetentionOptions, plan_deletes

__all__ = [
    "ChangeError",
    "CompactionOptions",
    "CompactionOutput",
    "CompactionPlan",
    "Manifest",
    "MemoryTierMetadata",
    "MirroredTierMetadata",
    "RowTierMetadata",
    "TierMetadata",
    "TierRetentionOptions",
    "apply_change",
    "encode_manifest",
    "manifest_of",
    "plan_compaction",
    "plan_compactions",
    "plan_deletes",
    "replaceable",
    "standing_for",
]
