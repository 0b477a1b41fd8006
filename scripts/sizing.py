"""How many nodes, bytes and requests a load takes: the formulas of docs/sizing.md as code.

    python scripts/sizing.py --messages-per-s 5000 --retention-h 72 [--tier --local-retention-h 2]

`estimate` is pure. `docs/calculator/sizing.js` holds the same formulas for the page with the
calculator; `tests/repo/test_sizing.py` compares the two.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

# CPU of a message on one replica and on a broker: a part of each request, a part of each message.
# They give the figures of docs/performance.md: 164 and 134 us alone, 28.5 and 21 us in 32.
STORAGE_REQUEST_US, STORAGE_MESSAGE_US = 139.9, 24.1
BROKER_REQUEST_US, BROKER_MESSAGE_US = 116.6, 17.4
# Measured with the Python client, one key of 8 characters, single sends and acks.
LOG_BYTES_PER_MESSAGE = 270
LOG_BYTES_PER_DELIVERY = 200
# Rows of ids and traces stay for a day, the index as long as the message.
ROW_BYTES_OF_A_DAY = 600
ROW_BYTES_LATER = 100
# An empty storage node: a log segment and the reserve for a full disk.
FIXED_DISK_BYTES = 785_000_000
STORAGE_MEMORY_GIB, BROKER_MEMORY_GIB, NAMESERVER_MEMORY_GIB = 1.0, 0.5, 0.25
NAMESERVERS = 3
RAFT_GROUPS_PER_STORAGE_NODE = 2
OBJECT_BYTES = 67_108_864
FLUSH_AGE_S = 30
PUTS_PER_OBJECT, GETS_PER_OBJECT = 7, 3
DISK_SHARE_MAX = 0.7
MONTH_S = 30 * 86_400
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Load:
    """The messages that are sent, read and kept.

    Attributes:
        messages_per_s: average over a day.
        peak_factor: the busiest minute / the average.
        body_bytes, properties_bytes: of a message; keys, tag and message group are properties.
        messages_per_request: 1 for single sends and acks, up to 32 for batches.
        consumer_groups: how often each message is delivered.
        retention_h: how long a message is kept.
        tier: whether old messages go to an object store.
        local_retention_h: how long the log keeps a message that the tier has.
    """

    messages_per_s: float = 1_000
    peak_factor: float = 3
    body_bytes: float = 1_000
    properties_bytes: float = 200
    messages_per_request: float = 1
    consumer_groups: float = 1
    retention_h: float = 72
    tier: bool = False
    local_retention_h: float = 1


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The nodes; a core is one that a single process can use.

    Attributes:
        replicas: of each message.
        zones: over which replicas and brokers are spread; 1: traffic between zones costs nothing.
        storage_cores, broker_cores: of one machine; one shard or worker runs on each.
        disk_gb: of one storage machine.
        core_share_max: highest share of a core that the peak may use.
    """

    replicas: int = 3
    zones: int = 3
    storage_cores: int = 2
    broker_cores: int = 2
    disk_gb: float = 500
    core_share_max: float = 0.6


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices in one currency: examples, to be replaced by your own."""

    core_month: float = 25
    memory_gib_month: float = 3
    disk_gb_month: float = 0.10
    store_gb_month: float = 0.023
    puts_1000: float = 0.005
    gets_1000: float = 0.0004
    zone_gb: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The need of a load: rates are those of the peak, a month is one of average load."""

    storage_cores_used: float
    broker_cores_used: float
    storage_nodes: int
    brokers: int
    disk_gb_per_node: float
    memory_gib: float
    client_mb_per_s: float
    replication_mb_per_s: float
    zone_gb_month: float
    store_gb: float
    puts_month: float
    gets_month: float
    cost_month: float


def estimate(load: Load, machines: Machines, prices: Prices) -> Estimate:
    """Return what a load takes. One machine of each tier may fail at the peak."""
    peak = load.messages_per_s * load.peak_factor
    operations = 1 + load.consumer_groups
    batch = load.messages_per_request
    storage_us = STORAGE_REQUEST_US / batch + STORAGE_MESSAGE_US
    broker_us = BROKER_REQUEST_US / batch + BROKER_MESSAGE_US
    storage_cores = peak * operations * storage_us * machines.replicas / 1e6
    broker_cores = peak * operations * broker_us / 1e6

    message_bytes = load.body_bytes + load.properties_bytes
    kept_h = min(load.local_retention_h, load.retention_h) if load.tier else load.retention_h
    disk_bytes = _disk_bytes(load, message_bytes, kept_h) * machines.replicas
    usable_bytes = machines.disk_gb * GB * DISK_SHARE_MAX - FIXED_DISK_BYTES
    storage_usable = machines.storage_cores * machines.core_share_max
    storage_nodes = max(
        machines.replicas,
        1 + math.ceil(storage_cores / storage_usable),
        math.ceil(disk_bytes / usable_bytes),
    )
    brokers = max(
        2, 1 + math.ceil(broker_cores / (machines.broker_cores * machines.core_share_max))
    )

    sent = load.messages_per_s * message_bytes
    outside = (machines.zones - 1) / machines.zones
    read = sent * load.consumer_groups
    between_zones = 2 * outside * (sent + read)
    if machines.zones > 1:
        between_zones += (machines.replicas - 1) * sent
    store_gb, objects = _tier(load, message_bytes, storage_nodes)
    result = Estimate(
        storage_cores_used=storage_cores,
        broker_cores_used=broker_cores,
        storage_nodes=storage_nodes,
        brokers=brokers,
        disk_gb_per_node=(disk_bytes / storage_nodes + FIXED_DISK_BYTES) / GB,
        memory_gib=storage_nodes * machines.storage_cores * STORAGE_MEMORY_GIB
        + brokers * machines.broker_cores * BROKER_MEMORY_GIB
        + NAMESERVERS * NAMESERVER_MEMORY_GIB,
        client_mb_per_s=peak * message_bytes * operations / 1e6,
        replication_mb_per_s=peak * message_bytes * (machines.replicas - 1) / 1e6,
        zone_gb_month=between_zones * MONTH_S / GB,
        store_gb=store_gb,
        puts_month=objects * PUTS_PER_OBJECT,
        gets_month=objects * GETS_PER_OBJECT,
        cost_month=0,
    )
    return _priced(result, machines, prices)


def _disk_bytes(load: Load, message_bytes: float, kept_h: float) -> float:
    """Return the bytes of one replica of everything."""
    log = message_bytes + LOG_BYTES_PER_MESSAGE + LOG_BYTES_PER_DELIVERY * load.consumer_groups
    day_s = min(kept_h, 24) * 3_600
    later_s = max(kept_h - 24, 0) * 3_600
    rows = ROW_BYTES_OF_A_DAY * day_s + ROW_BYTES_LATER * later_s
    return load.messages_per_s * (log * kept_h * 3_600 + rows)


def _tier(load: Load, message_bytes: float, storage_nodes: int) -> tuple[float, float]:
    """Return GB in the object store and objects written in a month."""
    if not load.tier:
        return 0.0, 0.0
    bytes_per_s = load.messages_per_s * (message_bytes + LOG_BYTES_PER_MESSAGE)
    raft_groups = storage_nodes * RAFT_GROUPS_PER_STORAGE_NODE
    objects_per_s = max(bytes_per_s / OBJECT_BYTES, raft_groups / FLUSH_AGE_S)
    return bytes_per_s * load.retention_h * 3_600 / GB, objects_per_s * MONTH_S


def _priced(result: Estimate, machines: Machines, prices: Prices) -> Estimate:
    cores = (
        result.storage_nodes * machines.storage_cores
        + result.brokers * machines.broker_cores
        + NAMESERVERS
    )
    cost = (
        cores * prices.core_month
        + result.memory_gib * prices.memory_gib_month
        + result.storage_nodes * machines.disk_gb * prices.disk_gb_month
        + result.store_gb * prices.store_gb_month
        + result.puts_month / 1_000 * prices.puts_1000
        + result.gets_month / 1_000 * prices.gets_1000
        + result.zone_gb_month * prices.zone_gb
    )
    return Estimate(**{**asdict(result), "cost_month": cost})


def _chosen(kind: type[Load | Machines | Prices], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of `kind`."""
    return {each.name: given[each.name] for each in fields(kind)}


def main() -> None:
    """Print an estimate as JSON; every field of load, machines and prices is an option."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = (Load, Machines, Prices)
    for kind in kinds:
        for each in fields(kind):
            name = "--" + each.name.replace("_", "-")
            if isinstance(each.default, bool):
                parser.add_argument(name, action="store_true")
            else:
                parser.add_argument(name, type=type(each.default), default=each.default)
    given = vars(parser.parse_args())
    result = estimate(
        Load(**_chosen(Load, given)),
        Machines(**_chosen(Machines, given)),
        Prices(**_chosen(Prices, given)),
    )
    print(json.dumps({name: round(value, 2) for name, value in asdict(result).items()}, indent=1))


if __name__ == "__main__":
    main()
