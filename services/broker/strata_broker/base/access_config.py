"""Configuration of access control."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from strata_broker.base.time_zones import LOCAL, check_zone
from strata_runtime.config import Section


class AccessControlSection(Section):
    """Access control: users, their signatures and policies (docs/security.md)."""

    mode: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="on: each call must be signed by a user whose policies allow it; off: anybody "
        "may do anything; auto: off where the process listens on a loopback address, else on.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow mode off, and plaintext between processes, where the process listens on "
        "other addresses than loopback.",
    )

    max_clock_skew_ms: int = Field(
        default=900_000,
        ge=1_000,
        description="How far the date of a signature may be from this broker's clock; a signature "
        "that somebody copied can be used so long, once for each of the time_zones.",
    )
    time_zones: tuple[Annotated[str, AfterValidator(check_zone)], ...] = Field(
        default=("UTC", LOCAL),
        min_length=1,
        max_length=32,
        description="Zones in which clients may write the date that they sign: the clients for "
        "Java, Python and Go write local time and call it UTC. UTC, local (the zone of this "
        "broker's machine), an offset (+08:00), a name (Asia/Shanghai), or any; comma-separated. A "
        "copied signature is good again when its time comes in another of these zones; with any it "
        "is good for up to 26 hours.",
    )
    max_signatures: int = Field(
        default=10_000, ge=1, description="Most signatures to remember as right."
    )
    max_principals: int = Field(
        default=10_000,
        ge=1,
        description="Most pairs of user and address whose decisions are remembered.",
    )
    max_decisions_per_principal: int = Field(
        default=1_024, ge=1, description="Most decisions to remember for one of them."
    )
    max_wrong_signatures: int = Field(
        default=20,
        ge=1,
        description="Wrong signatures of one access key from one address within "
        "wrong_signature_window_ms; further signatures are refused unseen until it is over. All "
        "access keys of an address together may be wrong 10 times as often.",
    )
    wrong_signature_window_ms: int = Field(
        default=10_000, ge=1, description="Time in which wrong signatures are counted."
    )
    max_wrong_signers: int = Field(
        default=10_000, ge=2, description="Most addresses and access keys whose errors are counted."
    )
    cluster_key_delay_ms: int = Field(
        default=60_000,
        ge=0,
        description="Age from which a new cluster key signs: until then other brokers may not "
        "know it yet.",
    )
    unsigned_handles_ms: int = Field(
        default=3_600_000,
        ge=0,
        description="Time since the first cluster key was made, in which handles from before it, "
        "which are not signed, are still good. Without access control they always are.",
    )
    first_admin_file: str = Field(
        default="",
        description="JSON file with access_key and secret_key of the first admin, for a nameserver "
        "or standalone node that finds no admin; empty: keys are made and written to "
        "first-admin.json in the data folder.",
    )
    previous_key_valid_ms: int = Field(
        default=86_400_000,
        ge=0,
        le=30 * 86_400_000,
        description="How long the former secret key of a user stays valid after a rotation that "
        "names no time.",
    )
    default_session_ms: int = Field(
        default=3_600_000, ge=1_000, description="Life of temporary keys that name no time."
    )
    max_session_ms: int = Field(
        default=12 * 3_600_000, ge=1_000, description="Longest life of temporary keys."
    )

    @field_validator("time_zones", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def is_on(self) -> bool:
        """Whether calls are checked; a process decides about `auto` before it starts."""
        return self.mode != "off"
