"""A migration out of a source in memory into a real node: queues, groups, cursors, refusals."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from strata_cli.client import connect
from strata_cli.errors import CliError
from strata_cli.migrate.copier import Copier, CopyOptions
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.source_rows import SourceGroup, SourceQueue
from strata_cli.migrate.state import MigrationState
from strata_cli.migrate.target import StrataTarget
from strata_cli.options import Common
from strata_cli.reference import JSON_KEYS
from strata_runtime.clock import SystemClock
from tests.integration.cli.conftest import Node
from tests.unit.cli.migrate_ports import MemorySource


async def copy(
    node: Node, source: MemorySource, path: Path, *, skips_refused: bool = False
) -> None:
    """Run a migration once."""
    state = MigrationState(path)
    try:
        state.fact("source", "memory")
        state.fact("namespace", "")
        with connect(Common(endpoint=node.endpoint)) as client:
            target = StrataTarget(client, "")
            pace = CopyPace(0, 0, clock=SystemClock(), sleep=asyncio.sleep)
            options = CopyOptions(skips_refused=skips_refused)
            copier = Copier(source, target, state, pace=pace, options=options)
            await Migration(source, target, Choices()).run(state, copier)
    finally:
        state.close()


def promised(command: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", JSON_KEYS[command]))


def keys_of(result: dict[str, Any]) -> set[str]:
    """Return the keys of a result and of the rows in it."""
    rows = [row for value in result.values() if isinstance(value, list) for row in value]
    return set(result).union(*rows)


def test_queues_groups_and_cursors_of_a_node(node: Node, tmp_path: Path) -> None:
    """Queues keep their order, a group its settings and its place; a repeat changes nothing."""
    source, path = MemorySource(), tmp_path / "state.db"
    source.most_pulled = 50
    for broker in ("a", "b"):
        source.add_topic(broker, "copied", 2, "NORMAL")
        for number in range(2):
            source.add(SourceQueue("copied", broker, number), 70, TAGS="t")
    source.add_topic("a", "grouped", 2, "FIFO")
    for turn in range(60):
        queue = SourceQueue("grouped", "a", turn % 2)
        source.add(queue, __SHARDINGKEY=f"g{turn % 4}" if turn % 3 else "")
    source.groups["readers"] = SourceGroup("readers", True, 4, (1_000, 5_000))
    source.positions["readers", SourceQueue("copied", "b", 0)] = 40
    for _ in range(2):
        asyncio.run(copy(node, source, path))
    names = ["a/0", "a/1", "b/0", "b/1"]
    for number, name in enumerate(names):
        found = node.json("message", "query", "copied", "--queue", str(number), "--count", "1000")
        assert [one["body"] for one in found["messages"]] == [
            f"copied/{name}/{offset}" for offset in range(70)
        ]
    group = node.json("group", "show", "readers")
    assert (group["fifo"], group["max_attempts"]) == (True, 5)
    assert group["backoff"]["next_ms"] == [1_000, 5_000]
    cursors = {each["queue"]: each["cursor"] for each in group["queues"]}
    assert cursors == {0: 0, 1: 0, 2: 40, 3: 0}
    grouped = node.json("message", "query", "grouped", "--count", "1000")["messages"]
    assert len(grouped) == 60
    for key in {one["message_group"] for one in grouped}:
        offsets = [
            int(one["body"].rpartition("/")[2]) for one in grouped if one["message_group"] == key
        ]
        assert offsets == sorted(offsets)

    verified = node.json("migrate", "verify", "--state", str(path))
    assert (verified["wrong"], verified["verified"]) == (0, 6)
    status = node.json("migrate", "status", "--state", str(path))
    assert status["messages"] == 340
    assert keys_of(status) - promised("migrate status") == set()
    assert keys_of(verified) - promised("migrate verify") - promised("migrate status") == set()


def test_a_message_that_the_node_refuses_is_named(node: Node, tmp_path: Path) -> None:
    """The reason is the node's own; with --skip-refused the rest is copied, and status tells."""
    source, path = MemorySource(), tmp_path / "state.db"
    source.add_topic("a", "refused", 1, "NORMAL")
    queue = SourceQueue("refused", "a", 0)
    source.add(queue, 2)
    source.add(queue, TAGS="a|b")
    source.add(queue, 2)
    with pytest.raises(CliError, match=r"offset 2 of refused/a/0 cannot be copied: .*tag"):
        asyncio.run(copy(node, source, path))
    asyncio.run(copy(node, source, path, skips_refused=True))
    found = node.json("message", "query", "refused")["messages"]
    assert [one["body"] for one in found] == [f"refused/a/0/{n}" for n in (0, 1, 3, 4)]
    [refusal] = node.json("migrate", "status", "--state", str(path))["refusals"]
    assert (refusal["topic"], refusal["offset"]) == ("refused", 2)
    assert "tag" in refusal["reason"]
    assert node.json("migrate", "verify", "--state", str(path))["wrong"] == 0
