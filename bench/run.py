"""Measure StrataMQ against its targets: `python bench/run.py --help`.

Everything runs on this machine, including the client. A fresh standalone node serves all rows,
unless `--endpoint` names a running node, whose CPU and memory are then not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.measure import Bench, LoadError  # noqa: E402
from bench.rows import ROWS, Figure, Row  # noqa: E402

RESULTS = ROOT / "bench" / "results"


def main() -> None:
    """Run the chosen rows, write the JSON and print the table."""
    arguments = parse()
    chosen = [row for row in ROWS if not arguments.only or row.name in arguments.only]
    results = {}
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        bench = Bench(Path(folder), arguments.endpoint, arguments.seconds)
        try:
            for row in chosen:
                if not (row.own_node and arguments.endpoint):
                    results[row.name] = run_row(row, bench)
        finally:
            bench.close()
    path = RESULTS / f"{arguments.name}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "seconds": arguments.seconds, "rows": results}
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {path.relative_to(ROOT)}")


def run_row(row: Row, bench: Bench) -> dict[str, Any]:
    """Run one row and print its line; return what is kept of it."""
    try:
        figures, details = row.measure(bench)
    except LoadError as error:
        print(f"{row.work:<44} FAILED: {error}", flush=True)
        return {"work": row.work, "failed": str(error)}
    print(line(row, figures), flush=True)
    return result(row, figures, details)


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of a row")
    parser.add_argument("--endpoint", help="HOST:PORT of a node that runs already")
    parser.add_argument("--name", default=datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    return parser.parse_args()


def result(row: Row, figures: list[Figure], details: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a row."""
    return {
        "work": row.work,
        "figures": [
            {"what": f.what, "value": f.value, "to_reach": f.to_reach, "reached": f.reached}
            for f in figures
        ],
        "details": details,
    }


def line(row: Row, figures: list[Figure]) -> str:
    """Return a line of the table."""
    cells = [f"{f.text} (to reach {f.target}{'' if f.reached else ', MISSED'})" for f in figures]
    return f"{row.work:<44} {'; '.join(cells)}"


def machine() -> dict[str, Any]:
    """Return where and on what this was measured."""
    model = "unknown"
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            model = text.partition(":")[2].strip()
            break
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "none",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main()
