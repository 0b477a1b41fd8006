"""Differences between the stores that speak S3, as far as they matter to this driver.

Chosen by `dialect=` in the URL. Without it: `aws` when there is no endpoint, else `generic`, which
uses only features that all of them have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class S3Dialect:
    """One family of stores.

    Attributes:
        addressing_style: where the bucket's name goes, into the path or the host name.
        checksums: whether a CRC32 goes along with every body and comes back with whole objects;
            stores that do not know it refuse the trailing form.
        delete_many: whether one request may remove many objects.
        delete_digest: whether that request must carry an MD5.
    """

    addressing_style: Literal["path", "virtual", "auto"]
    checksums: bool = True
    delete_many: bool = True
    delete_digest: bool = False


DIALECTS: Mapping[str, S3Dialect] = MappingProxyType(
    {
        "aws": S3Dialect("auto"),
        "generic": S3Dialect("path", checksums=False, delete_digest=True),
        "versitygw": S3Dialect("path"),
        "minio": S3Dialect("path"),
        # Aliyun refuses the bucket in the path and the trailing checksum.
        "oss": S3Dialect("virtual", checksums=False, delete_digest=True),
        # Google's S3 interface with HMAC keys, beside the driver of its own (gs.py).
        "gs": S3Dialect("path", checksums=False, delete_many=False),
    }
)
