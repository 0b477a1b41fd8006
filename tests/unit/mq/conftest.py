"""Golden bytes: stored layouts must not change by accident.

`REWRITE=1 pytest tests/unit/mq` writes the files anew; the difference is then reviewed like code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[2] / "vectors" / "mq"
LINE_BYTES = 32

Golden = Callable[[str, Mapping[str, bytes]], None]


def render(entries: Mapping[str, bytes]) -> str:
    """One block per entry: its name, then its bytes in hex, 32 per line."""
    blocks = []
    for name, value in entries.items():
        lines = [
            f"  {value[at : at + LINE_BYTES].hex(' ', -4)}"
            for at in range(0, len(value), LINE_BYTES)
        ]
        blocks.append("\n".join([f"{name} ({len(value)} bytes)", *lines]))
    return "\n\n".join(blocks) + "\n"


@pytest.fixture
def golden() -> Golden:
    """Compare entries with the file of this name in tests/vectors/mq."""

    def compare(file_name: str, entries: Mapping[str, bytes]) -> None:
        path = VECTORS / file_name
        text = render(entries)
        if os.environ.get("REWRITE") == "1":
            path.write_text(text)
        assert text == path.read_text()

    return compare
