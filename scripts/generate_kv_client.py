"""Generate the blocking client of tables from the asyncio client (`make kv-client`).

`--check` only compares. The clients differ only in how they wait, so only one of them is written
by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "libs/kv/strata_kv/aio.py"
TARGET = ROOT / "libs/kv/strata_kv/client.py"

# In their order: what the blocking client has in the place of something.
RULES = (
    ("A client of key-value tables for asyncio.", "A client of key-value tables that blocks."),
    (r"`client`, the blocking client, .*", "Generated from `aio` by `make kv-client`."),
    (
        "Calls to one broker, on one event loop.",
        "Calls to one broker; safe to use from many threads.",
    ),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    ("AsyncKvClient", "KvClient"),
    ("AsyncTable", "Table"),
    ("KvServiceAsyncStub", "KvServiceStub"),
    (r"AsyncGenerator\[(\w+), None\]", r"Iterator[\1]"),
    (r"Awaitable\[Response\]", "Response"),
    ("import AsyncGenerator, Awaitable, Callable, Sequence", "import Callable, Iterator, Sequence"),
    (r"grpc\.aio\.AioRpcError", "grpc.RpcError"),
    (r"grpc\.aio\.", "grpc."),
    (r"asyncio\.get_running_loop\(\)\.time\(\)", "time.monotonic()"),
    (r"asyncio\.sleep", "time.sleep"),
    ("import asyncio", "import time"),
)


def main() -> int:
    """Run; exit code 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    arguments = parser.parse_args()
    generated = blocking(SOURCE.read_text())
    if not arguments.check:
        TARGET.write_text(generated)
    elif generated != TARGET.read_text():
        name = TARGET.relative_to(ROOT)
        print(f"{name}: not what aio.py gives; run `make kv-client`", file=sys.stderr)
        return 1
    return 0


def blocking(source: str) -> str:
    """Return the blocking client.

    Raises:
        ValueError: a rule is of no use, or something of asyncio is left.
    """
    for pattern, replacement in RULES:
        source, count = re.subn(pattern, replacement, source)
        if not count:
            raise ValueError(f"nothing matches {pattern!r}")
    left = re.search(r"async|await|\baio\.", source)
    if left:
        line = source[: left.start()].count("\n") + 1
        raise ValueError(f"no rule for what line {line} has of asyncio")
    return tidy(source)


def tidy(source: str) -> str:
    """Return code as ruff would have it."""
    ruff = Path(sys.executable).with_name("ruff")
    for step in (("check", "--fix-only", "--unsafe-fixes", "--quiet"), ("format",)):
        source = subprocess.run(  # noqa: S603 - fixed arguments
            [ruff, *step, "--stdin-filename", TARGET, "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source


if __name__ == "__main__":
    sys.exit(main())
