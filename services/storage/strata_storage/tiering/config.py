"""The section `[tier]`: where old messages go, and what an operator may want to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from strata_mq.tier_policy import TierLevel
from strata_runtime.config import Section
from strata_storage.tiering.options import LocalOptions, TieringOptions, UploadOptions
from strata_storage.tiering.pace import PaceOptions
from strata_tier.objects import check_home, space_prefix
from strata_tier.ranges import TierRetentionOptions
from strata_tier.reads import TierReadOptions
from strata_tier.store import StoreOptions

_MIB = 1024 * 1024


class SpaceConfig(Section):
    """Where the messages of one namespace go. Without a URL: `spaces/NAMESPACE/` of the store."""

    url: str = Field(default="", description="Object store, as `tier.url`.")
    access_key: str = Field(default="", description="As `tier.access_key`.")
    secret_key: SecretStr = Field(default=SecretStr(""), description="As `tier.secret_key`.")
    session_token: SecretStr = Field(default=SecretStr(""), description="As `tier.session_token`.")


class TierConfig(Section):
    """Where the tier is and what it may cost. Without a URL there is none."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "uploads_max": "max_uploads",
        "download_bytes_per_second": "download_bytes_per_s",
        "upload_bytes_per_second": "upload_bytes_per_s",
        "requests_per_second": "requests_per_s",
        "requests_in_flight": "max_requests_in_flight",
    }

    url: str = Field(
        default="",
        description="Object store for old messages: posix:///dir, s3://bucket/prefix?endpoint=..."
        "&region=..., hdfs://HOST:PORT/path, gs://bucket/prefix; empty: none.",
    )
    home: str = Field(
        default="",
        description="Folder of this cluster in the store; clusters that share a store need each "
        "their own, and so does a restored one. Empty: `strata`, of a standalone node its id.",
    )
    access_key: str = Field(
        default="",
        description="Of S3, with its secret key; empty: the usual chain (environment, shared "
        "files, the machine's role).",
    )
    secret_key: SecretStr = Field(default=SecretStr(""), description="Of S3.")
    session_token: SecretStr = Field(default=SecretStr(""), description="Of temporary S3 keys.")
    metadata: Literal["rocksdb", "json"] = Field(
        default="rocksdb",
        description="Where a node keeps what is in which object: rocksdb, or json: also in files "
        "that people can read, tier/ in the data folder, and in memory.",
    )
    namespace_prefixes: bool = Field(
        default=True,
        description="Messages of each namespace go under a prefix of their own, spaces/NAMESPACE/; "
        "false: only those of `spaces` do.",
    )
    spaces: dict[str, SpaceConfig] = Field(
        default_factory=dict,
        description="Namespaces with a store or credentials of their own: "
        '{ NAMESPACE = { url = "...", access_key = "...", secret_key = "..." } }.',
    )
    default_level: TierLevel = Field(
        default=TierLevel.NOT_IN_DISK,
        description="tiered_storage_level of topics that name none.",
    )
    default_local_retention_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="How long the log keeps what the tier has, of topics that name none.",
    )
    object_bytes: int = Field(
        default=64 * _MIB, ge=_MIB, le=1_024 * _MIB, description="Messages of one object."
    )
    flush_age_ms: int = Field(
        default=30_000, ge=100, description="Age of a message at which it is uploaded in any case."
    )
    max_uploads: int = Field(
        default=2, ge=1, le=64, description="Objects uploaded at once, each of a raft group."
    )
    upload_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Of a processor that uploads may take while messages come in; 1: all of it.",
    )
    upload_patience_ms: int = Field(
        default=300_000,
        ge=0,
        description="Age of a message from which its upload takes what it needs.",
    )
    compaction: bool = Field(
        default=True,
        description="Storage nodes put small objects together; false: it is left to the job "
        "compact_tier.py.",
    )
    delete_grace_ms: int = Field(
        default=3_600_000, ge=0, description="How long an object stays that nobody needs."
    )
    manifest_interval_ms: int = Field(
        default=300_000, ge=1_000, description="How often manifest and checkpoint are uploaded."
    )
    cache_bytes: int = Field(
        default=256 * _MIB, ge=_MIB, description="Memory for what was read from the store."
    )
    max_requests_in_flight: int = Field(
        default=16, ge=1, le=256, description="Requests to the store at once."
    )
    requests_per_s: float | None = Field(
        default=None, gt=0, description="Budget of requests; absent: none."
    )
    upload_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Budget of bytes sent; absent: none."
    )
    download_bytes_per_s: float | None = Field(
        default=None, gt=0, description="Budget of bytes received; absent: none."
    )

    @field_validator("home")
    @classmethod
    def _check_home(cls, value: str) -> str:
        return check_home(value) if value else value

    @field_validator("spaces")
    @classmethod
    def _check_spaces(cls, value: dict[str, SpaceConfig]) -> dict[str, SpaceConfig]:
        if "" in value:
            raise ValueError("the default namespace uses `tier.url`")
        for space in value:
            space_prefix(space)
        return value

    def options(self) -> TieringOptions:
        """Return the options of tiering."""
        return TieringOptions(
            UploadOptions(
                object_bytes=self.object_bytes,
                flush_age_ms=self.flush_age_ms,
                check_interval_ms=min(1_000, self.flush_age_ms),
                max_uploads=self.max_uploads,
            ),
            LocalOptions(
                retention_ms=self.default_local_retention_ms,
                manifest_interval_ms=self.manifest_interval_ms,
            ),
            self.default_level,
            TierRetentionOptions(grace_ms=self.delete_grace_ms),
            PaceOptions(share=self.upload_share, patience_ms=self.upload_patience_ms),
            compacts=self.compaction,
        )

    def store_options(self) -> StoreOptions:
        """Return the limits of the store."""
        return StoreOptions(
            max_requests_in_flight=self.max_requests_in_flight,
            requests_per_s=self.requests_per_s,
            upload_bytes_per_s=self.upload_bytes_per_s,
            download_bytes_per_s=self.download_bytes_per_s,
        )

    def read_options(self) -> TierReadOptions:
        """Return the limits of reads."""
        return TierReadOptions(cache_bytes=self.cache_bytes)
