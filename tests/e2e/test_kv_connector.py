"""The example connector, killed at random moments: every line arrives once, in order."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.standalone import Standalone

CONNECTOR = Path(__file__).resolve().parents[2] / "docs" / "examples" / "file_connector.py"
LINES = 2_000
END_LIMIT_S = 90.0
DRAIN_LIMIT_S = 60.0


def started(node: Standalone, file: Path) -> "subprocess.Popen[str]":
    """Start the connector; return when it has read its position."""
    options = ("--file", str(file), "--topic", "lines", "--endpoint", node.endpoint)
    process = subprocess.Popen(
        [sys.executable, str(CONNECTOR), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("at ")
    return process


@pytest.mark.kill
@pytest.mark.timeout(600)
async def test_a_killed_connector_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that were sent again are stored once; none is left out."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    chance = random.Random(seed)
    monkeypatch.setenv("STRATA_PLUGINS", "kv")
    file = tmp_path / "lines.txt"
    bodies = [b"line %d" % number for number in range(LINES)]
    file.write_bytes(b"".join(body + b"\n" for body in bodies))
    node = Standalone(tmp_path / "data")
    node.start()
    try:
        node.create_topic("lines", "--type", "FIFO", "--queues", "4")
        kills = 0
        for _ in range(int(os.environ.get("STRATA_TEST_ROUNDS", "10"))):
            connector = await asyncio.to_thread(started, node, file)
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            kills += connector.poll() is None
            connector.kill()
            connector.communicate()
        last = await asyncio.to_thread(started, node, file)
        assert await asyncio.to_thread(ended, last) == f"done at {file.stat().st_size}\n"
        print(f"{kills} kills while it ran")
        assert await received(node) == bodies
    finally:
        node.close()


def ended(connector: "subprocess.Popen[str]") -> str:
    """Return what a connector said until it ended by itself."""
    assert connector.stdout is not None
    with connector.stdout:
        # Not `communicate`: that skips what `readline` has read ahead.
        said = connector.stdout.read()
    assert connector.wait(END_LIMIT_S) == 0
    return said


async def received(node: Standalone) -> list[bytes]:
    """Return all bodies of the topic in the order in which they are stored."""
    found: dict[tuple[int, int], bytes] = {}
    async with Client(node.endpoint) as client, asyncio.timeout(DRAIN_LIMIT_S):
        for queue in await client.queues("lines"):
            while delivered := await client.receive(queue, "readers", poll_s=1):
                await client.ack("lines", "readers", delivered)
                found |= {(one.queue, one.offset): one.body for one in delivered}
    return [found[place] for place in sorted(found)]
