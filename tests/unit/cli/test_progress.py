"""WorkProgress of long work: on a terminal only."""

from __future__ import annotations

import io
import sys

import pytest

from strata_cli.progress import WorkProgress, progress


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_script_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of nightly jobs stay short."""
    with progress("restore") as shown:
        shown.set(1, 2, "raft groups")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")


def test_a_terminal_shows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is gone when the work has ended; the result has standard output for itself."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress("verify", look=lambda: (3, 7, "objects")):
        pass
    assert "3 of 7  objects" in terminal.getvalue()


def test_work_of_unknown_size_has_a_count() -> None:
    """Nobody invents a total."""
    shown = WorkProgress("read")
    shown.set(5, detail="MiB")
    assert shown.texts()[1].startswith("5  MiB  ")
