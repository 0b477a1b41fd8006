"""HTTP connections of urllib3 that end when their request is given up (`threads.watch`).

All of a request is covered, also what no timeout of a socket bounds: a handshake, a head or a body
that comes byte by byte, a body that the store takes byte by byte.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from strata_tier.store.drivers.threads import watch

if TYPE_CHECKING:
    _Connection = HTTPConnection
else:
    _Connection = object


class WatchedConnection(_Connection):
    """To be mixed into a connection of urllib3, before its class."""

    def _new_conn(self) -> socket.socket:
        opened = super()._new_conn()
        watch(opened)
        return opened

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request; a connection that is used again belongs to another job now."""
        if self.sock is not None:
            watch(self.sock)
        super().request(*args, **kwargs)


class _Http(WatchedConnection, HTTPConnection):
    pass


class _Https(WatchedConnection, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


WATCHED_POOLS = {"http": _HttpPool, "https": _HttpsPool}
"""For `PoolManager.pool_classes_by_scheme`."""
