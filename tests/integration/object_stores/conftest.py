"""Servers that the fault suites of this folder disturb: their own, no other suite's."""

from tests.parts.fixtures import gcs_server, hdfs_cluster, s3_server

__all__ = ["gcs_server", "hdfs_cluster", "s3_server"]
