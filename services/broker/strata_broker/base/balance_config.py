"""Configuration of how brokers behind one address share their clients."""

from __future__ import annotations

from pydantic import Field

from strata_runtime.config import Section


class BalanceSection(Section):
    """Client connections, evenly on the brokers that advertise one endpoint."""

    enabled: bool = Field(
        default=True,
        description="Ask clients to connect again while this broker holds clearly more than its "
        "share of the connections behind its advertised endpoint. Nothing happens where each "
        "broker advertises an endpoint of its own.",
    )
    interval_ms: int = Field(
        default=10_000,
        ge=100,
        description="Time between two counts of the connections of these brokers.",
    )
    tolerance_share: float = Field(
        default=0.2,
        ge=0,
        description="Connections beyond the even share that are left alone, as a share of it: "
        "with 0.2 a broker may hold 1.2 times the even share.",
    )
    max_moves_per_s: int = Field(
        default=10, ge=1, le=1_000, description="Most clients asked to connect again in a second."
    )
