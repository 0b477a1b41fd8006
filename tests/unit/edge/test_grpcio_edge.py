"""Checks of the grpcio edge before it listens."""

from __future__ import annotations

import pytest

from strata_edge.front_config import FrontConfig
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.guard_limits import GuardLimits
from strata_edge.options import EdgeOptions
from strata_edge.shares import Shares
from strata_runtime.tls_policy import TlsPolicy


def test_front_needs_a_certificate() -> None:
    """An edge with a front and no certificate is refused at once, not at the first TLS client."""
    with pytest.raises(ValueError, match="certificate"):
        GrpcioEdge(EdgeOptions(front=True))


def test_front_config_survives_its_command_line() -> None:
    """The front reads from the command line what the parent wrote there."""
    guard = GuardLimits(max_resets_per_s=7)
    config = FrontConfig(
        3,
        4,
        "/a b/edge.sock",
        "c.crt",
        "c.key",
        True,
        TlsPolicy("1.3", ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)),
        20_000,
        10_000,
        131_072,
        10_000,
        Shares(4, 3, 2),
        guard,
    )
    assert FrontConfig.from_json(config.to_json()) == config
