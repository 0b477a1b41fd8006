"""Each RPC of a broker has the limits that its requests need, and no more."""

from __future__ import annotations

import pytest

from strata_broker.base.config import BrokerConfig
from strata_broker.base.method_limits import default_limits, method_limits

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
TABLES = "/strata.kv.v1.KvService/"
KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("path", "size_bytes", "time_s"),
    [
        (MESSAGING + "SendMessage", 16 * MIB, 30),
        (MESSAGING + "AckMessage", MIB, 30),
        (MESSAGING + "ReceiveMessage", 320 * KIB, 50),
        (MESSAGING + "PullMessage", 320 * KIB, 50),
        (MESSAGING + "Telemetry", 512 * KIB, 30),
        (MESSAGING + "Heartbeat", 64 * KIB, 30),
        (MESSAGING + "EndTransaction", 64 * KIB, 30),
        (TABLES + "Put", 16 * MIB, 30),
        (TABLES + "Get", 64 * KIB, 30),
        (TABLES + "Watch", 64 * KIB, 86_400),
        ("/strata.admin.v1.AdminService/ApplyPlan", 4 * MIB, 600),
        ("/strata.broker.v1.PeerService/CommandClient", 16 * MIB, 600),
        ("/grpc.health.v1.Health/Check", 64 * KIB, 30),
    ],
)
def test_the_limits_of_an_rpc(path: str, size_bytes: int, time_s: float) -> None:
    """Only what carries messages or rows may be large, only streams and operators may last."""
    config = BrokerConfig()
    limits = method_limits(config, 16 * MIB).get(path, default_limits(config))
    assert (limits.max_request_bytes, limits.max_time_s) == (size_bytes, time_s)
