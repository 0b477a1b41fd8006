"""The throughput of uploads to the tier, and their cost for appends, in one run; prints JSON.

    python bench/tier_upload.py [--store posix|s3|hdfs|gs] [--mib 256] [--seconds 5] [--size 1024]
        [--store-folder DIR]

One storage node without RPC, over the servers that the tests use (`make tier-parts`). A backlog is
appended with uploads paused; then it is uploaded alone, between two turns of the store's usual
client (file copy, boto3, hdfs-native, urllib3) that puts objects of the same sizes.
Last, appends run in slices, uploads paused and running in turn, on the same machine at the same
time of day: the ratio of their rates is the cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.engine import BATCH, Appends, NoServer  # noqa: E402
from bench.object_stores import STORES, Bare  # noqa: E402
from strata_mq.tier_policy import TierLevel, TierPolicy  # noqa: E402
from strata_runtime.clock import SystemClock  # noqa: E402
from strata_runtime.metrics import Metrics  # noqa: E402
from strata_runtime.runtime import Runtime  # noqa: E402
from strata_storage.base.config import StorageConfig  # noqa: E402
from strata_storage.group.engine import GroupEngine  # noqa: E402
from strata_storage.process.app import StorageApp, StorageSetup  # noqa: E402
from strata_storage.tiering.config import TierConfig  # noqa: E402
from strata_storage.tiering.opening import TierSetup  # noqa: E402
from strata_storage.tiering.parts import FixedTierPolicies  # noqa: E402
from strata_testing.storage_node import lone_storage_app  # noqa: E402
from tests.parts.stores import Place  # noqa: E402

MIB = 1024 * 1024
GROUP = 1
SLICES = 6
POLICY = TierPolicy(TierLevel.NOT_IN_DISK)


def object_sizes(engine: GroupEngine) -> list[int]:
    """Return the bytes of every committed object."""
    return [held.ref.length for held in engine.machine.tier.metadata.objects()]


def is_uploaded(engine: GroupEngine) -> bool:
    """Whether the tier has everything that was appended."""
    machine = engine.machine
    return not machine.tier.dispatch and all(
        machine.tier.commit_offset(topic_id, queue) == row.next_offset
        for topic_id, queue, row in machine.rows.queues.all()
    )


async def upload_all(app: StorageApp, engine: GroupEngine) -> float:
    """Let uploads go on until nothing waits; return the seconds."""
    began_s = time.perf_counter()
    await app.node.tiering.pause(engine, paused=False)
    done = is_uploaded(engine)
    while not done:
        await asyncio.sleep(0.02)
        done = is_uploaded(engine)
    spent_s = time.perf_counter() - began_s
    await app.node.tiering.pause(engine, paused=True)
    return spent_s


def put_bare(bare: Bare, body: bytes, sizes: Sequence[int]) -> float:
    """Put objects of some sizes, one after another; return the seconds."""
    began_s = time.perf_counter()
    for size in sizes:
        bare.put(body[:size])
    return time.perf_counter() - began_s


async def cost_of_uploads(
    app: StorageApp, engine: GroupEngine, appends: Appends, seconds: float
) -> dict[str, float]:
    """Append in slices, with and without uploads; return messages per second of both."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(SLICES):
        paused = number % 2 == 0
        await app.node.tiering.pause(engine, paused=paused)
        done, spent_s = appends.tally.messages, appends.tally.spent_s
        await appends.run(seconds / SLICES)
        rate = (appends.tally.messages - done) / (appends.tally.spent_s - spent_s)
        rates[paused].append(rate)
    alone, beside = (sum(rates[key]) / len(rates[key]) for key in (True, False))
    return {
        "appends_alone_per_s": round(alone),
        "appends_beside_uploads_per_s": round(beside),
        "kept_share": round(beside / alone, 3),
    }


async def measure(
    arguments: argparse.Namespace, folder: Path, place: Place, bare: Bare
) -> dict[str, object]:
    """Run everything."""
    config = TierConfig.model_validate({"url": place.url, "home": "bench", "flush_age_ms": 200})
    app = lone_storage_app(
        StorageConfig(ballast_bytes=0),
        folder,
        NoServer(),
        runtime=Runtime(
            SystemClock(),
            random.random,
            Metrics.disabled(),
            lambda name, error: print(name, error, file=sys.stderr),
        ),
        setup=StorageSetup(tier=TierSetup(config, FixedTierPolicies(POLICY))),
    )
    await app.start()
    try:
        engine = app.node.engine(GROUP)
        await app.node.tiering.pause(engine, paused=True)
        appends = Appends(engine, arguments.size, 1)
        while appends.tally.messages * arguments.size < arguments.mib * MIB:
            await appends.run(0.2)
        body = os.urandom(2 * config.object_bytes)
        expected = [config.object_bytes] * (arguments.mib * MIB // config.object_bytes)
        bare_s = await asyncio.to_thread(put_bare, bare, body, expected)
        began_cpu_s = time.process_time()
        upload_s = await upload_all(app, engine)
        upload_cpu_s = time.process_time() - began_cpu_s
        sizes = object_sizes(engine)
        bare_s += await asyncio.to_thread(put_bare, bare, body, sizes)
        cost = await cost_of_uploads(app, engine, appends, arguments.seconds)
    finally:
        await app.stop(5.0)
    rate, bare_rate = sum(sizes) / upload_s, (sum(sizes) + sum(expected)) / bare_s
    return {
        "store": arguments.store,
        "message_bytes": arguments.size,
        "batch_messages": BATCH,
        "uploaded_mib": round(sum(sizes) / MIB, 1),
        "objects": len(sizes),
        "upload_mib_per_s": round(rate / MIB, 1),
        "upload_mib_per_cpu_s": round(sum(sizes) / MIB / upload_cpu_s, 1),
        "bare_mib_per_s": round(bare_rate / MIB, 1),
        "share_of_bare": round(rate / bare_rate, 3),
        **cost,
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--store", choices=STORES, default="posix")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--store-folder", type=Path, help="other disk for the store's data")
    arguments = parser.parse_args()
    # As in every server (rule 30): at the default, each hop between threads may cost 5 ms.
    sys.setswitchinterval(0.0001)
    with (
        tempfile.TemporaryDirectory(prefix="strata-bench-") as folder,
        tempfile.TemporaryDirectory(
            prefix="strata-store-", dir=arguments.store_folder
        ) as store_folder,
        STORES[arguments.store](Path(store_folder)) as (place, bare_of),
    ):
        if place.credentials is not None:
            os.environ["AWS_ACCESS_KEY_ID"] = place.credentials.access_key
            os.environ["AWS_SECRET_ACCESS_KEY"] = place.credentials.secret_key
        (Path(store_folder) / "store").mkdir(exist_ok=True)
        result = asyncio.run(measure(arguments, Path(folder), place, bare_of(place)))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
