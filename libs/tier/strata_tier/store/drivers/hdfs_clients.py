"""Clients of HDFS that a process keeps until it ends.

The last reference to a client of hdfs-native (0.14.7) ends its runtime, and waits for the runtime's
threads with the interpreter's lock held. A thread that is about to hand a result to an event loop
waits for that lock: both wait forever, and the process with them. So no client is ever released,
and stores with the same name node and settings share one client.
"""

from __future__ import annotations

from functools import cache

from hdfs_native import AsyncClient


@cache
def kept_client(
    address: str, timeout_ms: int | None = None, config_folder: str | None = None
) -> AsyncClient:
    """Return the client of a name node; no request is sent.

    Args:
        address: HOST:PORT, or a name service of the configuration.
        timeout_ms: of a socket; None: the library's own.
        config_folder: with `core-site.xml` and `hdfs-site.xml`; None: where the library looks.
    """
    settings = {"dfs.client.failover.max.attempts": "0"}
    if timeout_ms is not None:
        settings["dfs.client.socket-timeout"] = str(timeout_ms)
    return AsyncClient(f"hdfs://{address}", settings, config_folder)
