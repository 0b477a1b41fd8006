"""Clients of the cluster for `tests.kubernetes.life`: load that goes on while the cluster changes.

Reads commands from standard input, one a line, and answers each with one line of JSON:

    begin NAME   a change begins
    end          it has ended: sends answered meanwhile, latencies, calls that were repeated
    stop         end the load, read everything, judge the history

It runs in a node's network with the cluster's DNS, so it reaches the brokers as a pod does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

from tests.e2e.history import check
from tests.e2e.load import Load, percentile

_KINDS_SHOWN = 8


def main() -> None:
    """Run until `stop`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--keys", required=True, help="ACCESS_KEY:SECRET_KEY")
    parser.add_argument("--normal", required=True)
    parser.add_argument("--fifo", required=True)
    parser.add_argument("--group", required=True)
    options = parser.parse_args()
    access_key, _, secret_key = options.keys.partition(":")
    keys = (access_key, secret_key)
    load = Load(options.endpoint, options.normal, options.fifo, options.group, keys=keys)
    asyncio.run(serve(load))


async def serve(load: Load) -> None:
    """Run the load and answer commands."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    name, since_s, errors_before = "", 0.0, 0
    async with load.running():
        while line := (await reader.readline()).decode().strip():
            if line == "stop":
                break
            if line.startswith("begin "):
                name = line.partition(" ")[2]
                since_s, errors_before = time.monotonic(), len(load.errors)
                say({"began": name, "answered": load.count()})
            elif line == "end":
                say({"change": name, **seen(load, since_s, errors_before)})
    # Retries are over: a send that is still without an answer has failed.
    unanswered = len(load.history.sends) - len(load.history.answered)
    await load.drain()
    violations = check(load.history)
    say(
        {
            "sends": len(load.history.sends),
            "answered": len(load.history.answered),
            "failed": unanswered,
            "lost": sum(each.startswith("lost") for each in violations),
            "violations": violations[:_KINDS_SHOWN],
            "repeated_calls": len(load.errors),
        }
    )


def seen(load: Load, since_s: float, errors_before: int) -> dict[str, Any]:
    """Return what clients saw since a moment."""
    until_s = time.monotonic()
    latencies = load.latencies_s(since_s, until_s)
    repeated = Counter(load.errors[errors_before:])
    return {
        "seconds": round(until_s - since_s, 1),
        "answered": len(latencies),
        "latency_p50_ms": round(percentile(latencies, 0.5) * 1_000),
        "latency_p99_ms": round(percentile(latencies, 0.99) * 1_000),
        "latency_max_ms": round(max(latencies, default=0.0) * 1_000),
        "repeated_calls": sum(repeated.values()),
        "reasons": dict(repeated.most_common(_KINDS_SHOWN)),
    }


def say(answer: dict[str, Any]) -> None:
    """Answer a command."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
