"""Clients of HDFS outlive the stores that use them."""

from __future__ import annotations

from strata_tier.store.drivers.hdfs_clients import kept_client
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.store_options import StoreOptions


async def test_no_client_is_let_go_with_its_store() -> None:
    """To let go of one could end in a deadlock of its threads with the event loop's."""
    options = StoreOptions(request_timeout_ms=1234)
    for _ in range(2):
        store = await open_store("hdfs://127.0.0.1:1/folder", OpenWith(options=options))
        await store.close()
        del store
    made = kept_client.cache_info().misses
    assert kept_client("127.0.0.1:1", 1234, None) is kept_client("127.0.0.1:1", 1234, None)
    assert kept_client.cache_info().misses == made
