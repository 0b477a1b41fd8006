"""Scripts in `tests/vectors/raft` give exactly the conversations that stand below their lines.

`REWRITE=1` writes them anew; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_sim.raft_conversation import Conversation

VECTORS = Path(__file__).parents[2] / "vectors" / "raft"


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path) -> None:
    """The vector holds what replicas say and do."""
    expected = path.read_text()
    actual = play(expected)
    if os.environ.get("REWRITE"):
        path.write_text(actual)
    else:
        assert actual == expected


def play(text: str) -> str:
    """Run the commands of a vector; keep its comments and blank lines."""
    conversation = Conversation()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *conversation.run(line[2:])]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"
