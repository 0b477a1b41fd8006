"""The section `[tier]`: where old messages go, and what an operator may want to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from strata_mq.tier_policy import TierLevel
from strata_runtime.config import Section
from strata_storage.tiering.options import LocalOptions, TieringOptions, UploadOptions
from strata_storage.tiering.pace import PaceOptions
from strata_tier.objects import check_home
from strata_tier.ranges import TierRetentionOptions
from strata_tier.reads import TierReadOptions
from strata_tier.store import StoreOptions

# Defaults are written once, where they are used.
_TIERING, _STORE, _READS = TieringOptions(), StoreOptions(), TierReadOptions()

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
        description="Folder of this cluster in the store. Each cluster in a store, a "
        "restored cluster too, needs its own. Empty: `strata`; for a standalone "
        "node its cluster id.",
    )
    access_key: str = Field(
        default="",
        description="Access key of S3, used with `secret_key`; empty: the usual chain "
        "(environment, shared files, the machine's role).",
    )
    secret_key: SecretStr = Field(default=SecretStr(""), description="Secret key of S3.")
    session_token: SecretStr = Field(
        default=SecretStr(""), description="Token of temporary S3 keys."
    )
    metadata: Literal["rocksdb", "json"] = Field(
        default="rocksdb",
        description="Where a node keeps the index of objects: rocksdb; or json: in memory "
        "too, and in files that people can read (`tier/` in the data folder).",
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
        default=_TIERING.default_level,
        description="`tiered_storage_level` of topics without one of their own.",
    )
    default_local_retention_ms: int = Field(
        default=_TIERING.local.retention_ms,
        ge=0,
        description="Time for which the log keeps messages that the tier has, for topics "
        "without a time of their own.",
    )
    object_bytes: int = Field(
        default=_TIERING.upload.object_bytes,
        ge=_MIB,
        le=1_024 * _MIB,
        description="Most bytes of messages of one object.",
    )
    flush_age_ms: int = Field(
        default=_TIERING.upload.flush_age_ms,
        ge=100,
        description="Age at which a message is uploaded, however small its object is.",
    )
    max_uploads: int = Field(
        default=_TIERING.upload.max_uploads,
        ge=1,
        le=64,
        description="Most concurrent uploads, one per raft group.",
    )
    upload_share: float = Field(
        default=_TIERING.pace.share,
        gt=0,
        le=1,
        description="Share of a processor for uploads while messages come in; 1: all of it.",
    )
    upload_patience_ms: int = Field(
        default=_TIERING.pace.patience_ms,
        ge=0,
        description="Age of a message from which on its upload may exceed `upload_share`.",
    )
    compaction: bool = Field(
        default=_TIERING.compacts,
        description="Storage nodes merge small objects; false: only the job compact_tier.py does.",
    )
    delete_grace_ms: int = Field(
        default=_TIERING.retention.grace_ms,
        ge=0,
        description="Time for which an unneeded object is kept.",
    )
    manifest_interval_ms: int = Field(
        default=_TIERING.local.manifest_interval_ms,
        ge=1_000,
        description="Time between two uploads of manifest and checkpoint.",
    )
    cache_bytes: int = Field(
        default=_READS.cache_bytes,
        ge=_MIB,
        description="Memory for blocks that were read from the store.",
    )
    max_requests_in_flight: int = Field(
        default=_STORE.max_requests_in_flight,
        ge=1,
        le=256,
        description="Most concurrent requests to the store.",
    )
    requests_per_s: float | None = Field(
        default=_STORE.requests_per_s,
        gt=0,
        description="Most requests to the store; absent: no limit.",
    )
    upload_bytes_per_s: float | None = Field(
        default=_STORE.upload_bytes_per_s,
        gt=0,
        description="Most bytes sent to the store; absent: no limit.",
    )
    download_bytes_per_s: float | None = Field(
        default=_STORE.download_bytes_per_s,
        gt=0,
        description="Most bytes received from the store; absent: no limit.",
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
