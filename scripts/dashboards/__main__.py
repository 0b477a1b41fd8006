"""Write the dashboards into the chart, or check that they are fresh (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.dashboards.boards import BOARDS
from scripts.dashboards.rendering import render

FOLDER = Path(__file__).resolve().parents[2] / "charts/strata/files/dashboards"


def main(arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    texts = {f"{board.uid}.json": render(board) for board in BOARDS}
    if "--check" in arguments:
        found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
        if found != texts:
            print("the dashboards differ from their code; run make dashboards")
            return 1
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
