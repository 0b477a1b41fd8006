"""Bodies of messages that are sent from the command line: any bytes, from anywhere."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import STRATA

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node

# More than an argument can hold, and no text.
LARGE = b"\xff\xfe" + os.urandom(300_000)


@pytest.mark.parametrize(
    ("options", "typed", "body"),
    [
        ([b"--body=-"], LARGE, LARGE),
        ([b"--body", b"-"], b"", b""),
        ([b"--file", b"body"], b"", LARGE),
        ([b"--body=-5"], b"", b"-5"),
        ([b"--body=\xff\xfe"], b"", b"\xff\xfe"),
    ],
    ids=["standard input", "nothing typed", "file", "a minus", "no text"],
)
def test_a_body_may_be_any_bytes(
    node: Node, tmp_path: Path, options: list[bytes], typed: bytes, body: bytes
) -> None:
    """The stored body is the given one; a body of nothing is refused in one line."""
    (tmp_path / "body").write_bytes(LARGE)
    name = f"bodies-{tmp_path.name}"[:60].replace(".", "-")
    node.json("topic", "create", name, "--queues", "1")
    sent = subprocess.run(
        [*STRATA, "message", "send", name, *options, "--endpoint", node.endpoint],
        input=typed,
        capture_output=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    if not body:
        assert sent.returncode == 4
        assert sent.stderr.startswith(b"strata: ")
        assert sent.stderr.count(b"\n") == 1
        return
    assert (sent.returncode, sent.stderr) == (0, b"")
    [found] = node.json("message", "receive", name, "--group", "g", "--ack")["messages"]
    assert base64.b64decode(found["body_base64"] or "") == body or found["body"].encode() == body
