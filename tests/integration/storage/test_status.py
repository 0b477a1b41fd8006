"""Status of a running storage node."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_seglog.log import CommitLog
from strata_testing.storage_node import node_under_test


async def test_a_status_looks_at_each_replica_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of all replicas is made under the lock that the writer needs: not once for each."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])

        def all_of_them(_: CommitLog) -> None:
            pytest.fail("the summaries of all replicas were made")

        monkeypatch.setattr(CommitLog, "replicas", all_of_them)
        status = node.app.node.status()
        monkeypatch.undo()
    assert [each.raft_group for each in status.replicas] == [1]
    assert status.replicas[0].last_index > 1
