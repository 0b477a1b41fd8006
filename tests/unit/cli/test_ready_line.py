"""The ready line: whole for whoever reads along."""

import io
import os
import sys
from collections.abc import Mapping

import pytest

from strata_cli.processes.ready_line import ReadyLine


class Unbuffered(io.StringIO):
    """An output that keeps each write apart, as a process's does with `PYTHONUNBUFFERED`."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        """Take one write."""
        self.writes.append(text)
        return len(text)


def fields() -> Mapping[str, object]:
    """Return what a server tells."""
    return {"grpc": "127.0.0.1:8081", "access_control": "on"}


@pytest.mark.parametrize(
    ("as_json", "line"),
    [
        (False, "ready grpc=127.0.0.1:8081 access_control=on pid={pid}\n"),
        (True, '{{"grpc": "127.0.0.1:8081", "access_control": "on", "pid": {pid}}}\n'),
    ],
)
async def test_the_line_is_one_write(
    monkeypatch: pytest.MonkeyPatch, as_json: bool, line: str
) -> None:
    """A reader of the output finds the whole line or none of it."""
    output = Unbuffered()
    monkeypatch.setattr(sys, "stdout", output)
    await ReadyLine(fields, as_json=as_json).start()
    assert output.writes == [line.format(pid=os.getpid())]
