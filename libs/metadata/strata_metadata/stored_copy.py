"""Opens a node's copy of the metadata; a damaged one is put aside, for nameservers have it all.

The copy is what a node knows without a nameserver (rule 16). One that is damaged knows nothing for
certain, and would end each start until somebody removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_state.metadata import DamagedMetadataError, MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range
from strata_state.metadata_rocksdb import RocksDbMetadataStore

_ASIDE = ".damaged"


def open_copy(folder: Path, kinds: Collection[MetadataRowKind]) -> MetadataStore:
    """Open or create a copy. Blocks.

    Args:
        folder: of the copy; a damaged one gets `.damaged` behind its name, and takes the place of
            one that was put aside before.
        kinds: rows that a start reads, all of which must be readable.

    Raises:
        MetadataStoreError: it cannot be opened.
        OSError: a damaged one cannot be put aside.
    """
    try:
        return _readable(folder, kinds)
    except DamagedMetadataError as error:
        aside = folder.with_name(folder.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        get_logger("metadata").error(
            "the copy of the metadata was damaged; it is fetched again from a nameserver",
            put_aside=str(aside),
            reason=one_line(error),
        )
    return RocksDbMetadataStore(folder)


def _readable(folder: Path, kinds: Collection[MetadataRowKind]) -> MetadataStore:
    store = RocksDbMetadataStore(folder)
    try:
        for kind in (MetadataRowKind.APPLIED, *kinds):
            for _ in store.scan(*kind_range(kind)):
                pass
    except BaseException:
        store.close()
        raise
    return store
