"""Work on the tier as a whole: audits, compaction, inspection, restore."""

from strata_tier.upkeep.audit import AuditOptions, AuditReport, verify, verify_object
from strata_tier.upkeep.bucket import (
    manifests_in,
    manifests_of,
    metadata_keys,
    newest_manifest,
    newest_metadata,
    objects_under,
    one_home,
)
from strata_tier.upkeep.compact import CompactOptions, delete_objects, delete_orphans, write_output
from strata_tier.upkeep.inspection import HomeContents, TopicContents, inspect, inspect_object
from strata_tier.upkeep.restore import RaftGroupRestore, Restore, plan_restore

__all__ = [
    "AuditOptions",
    "AuditReport",
    "CompactOptions",
    "HomeContents",
    "RaftGroupRestore",
    "Restore",
    "TopicContents",
    "delete_objects",
    "delete_orphans",
    "inspect",
    "inspect_object",
    "manifests_in",
    "manifests_of",
    "metadata_keys",
    "newest_manifest",
    "newest_metadata",
    "objects_under",
    "one_home",
    "plan_restore",
    "verify",
    "verify_object",
    "write_output",
]
