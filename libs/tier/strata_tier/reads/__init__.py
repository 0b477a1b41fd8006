"""Reads from the tier: blocks, caches, read-ahead."""

from strata_tier.reads.block_source import BlockSource, PlacedBlock
from strata_tier.reads.read_options import TierReadOptions
from strata_tier.reads.reader import TierFetch, TierRead, TierReader

__all__ = [
    "BlockSource",
    "PlacedBlock",
    "TierFetch",
    "TierRead",
    "TierReadOptions",
    "TierReader",
]
