"""Configuration of key-value tables."""

from __future__ import annotations

from pydantic import Field

from strata_runtime.config import Section


class KvSection(Section):
    """Key-value tables; only with the plugin `kv`."""

    auto_create_table: bool = Field(
        default=True, description="Create a table at the first write to it."
    )
    timeout_ms: int = Field(
        default=3_000, ge=1, description="Time limit of a call whose client set no deadline."
    )
    max_key_bytes: int = Field(
        default=4 * 1024, ge=1, le=65_535, description="Longest key of an item."
    )
    max_value_bytes: int = Field(default=1024 * 1024, ge=1, description="Largest value of an item.")
    max_operations: int = Field(default=1_024, ge=1, description="Most operations of one batch.")
    max_batch_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1,
        le=6 * 1024 * 1024,
        description="Largest sum of keys and values of one batch.",
    )
    max_list_items: int = Field(
        default=1_000, ge=1, description="Most items of one page of a list."
    )
    max_bytes_in_flight: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Most bytes of writes that wait; further writes get RESOURCE_EXHAUSTED.",
    )
    max_bytes_in_flight_per_client: int = Field(
        default=16 * 1024 * 1024,
        ge=1,
        description="Most bytes of requests for tables that wait, of one client and of one "
        "connection.",
    )
    max_bytes_in_flight_per_address: int = Field(
        default=48 * 1024 * 1024, ge=1, description="The same for one client address."
    )
    max_reads_in_flight: int = Field(
        default=10_000,
        ge=1,
        description="Most reads that wait; further reads get RESOURCE_EXHAUSTED.",
    )
    max_calls_in_flight_per_client: int = Field(
        default=2_500,
        ge=1,
        description="Most reads and writes that wait, of one client and of one connection.",
    )
    max_calls_in_flight_per_address: int = Field(
        default=7_500, ge=1, description="The same for one client address."
    )
    max_watches: int = Field(
        default=1_000, ge=1, description="Most open watches of this broker's clients."
    )
    max_watches_per_client: int = Field(
        default=250,
        ge=1,
        description="Most open watches and exports of one client and of one connection.",
    )
    max_watches_per_address: int = Field(
        default=750, ge=1, description="The same for one client address."
    )
    max_exports: int = Field(default=4, ge=1, description="Most concurrent exports.")
    max_exports_per_client: int = Field(
        default=2, ge=1, description="Most exports under way of one client and of one connection."
    )
    max_exports_per_address: int = Field(
        default=3, ge=1, description="The same for one client address."
    )
