"""Servers that the contract suites of this folder run against."""

from tests.parts.fixtures import gcs_server, hdfs_cluster, s3_server, url_of

__all__ = ["gcs_server", "hdfs_cluster", "s3_server", "url_of"]
