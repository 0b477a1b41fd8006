"""boto3's connections, ended when their request is given up (`watched`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

from strata_tier.store.drivers.watched import WatchedConnection

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client


# The types of botocore contradict those of urllib3 without these classes, too.
class _Http(WatchedConnection, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _Https(WatchedConnection, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _HttpPool(AWSHTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _Https


def watch_connections(client: S3Client) -> None:
    """Make a client that has sent nothing yet use watched connections.

    boto3 has no setting for the class of its connections. The mapping that is changed here is the
    one that botocore gives its own managers, that of each proxy included;
    `tests/unit/tier/test_trickling_stores.py` fails when a new version has another place for it.
    """
    session = cast("Any", client)._endpoint.http_session
    session._pool_classes_by_scheme.update(http=_HttpPool, https=_HttpsPool)
