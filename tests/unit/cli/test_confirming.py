"""A terminal is asked before something is destroyed, a script is not."""

from __future__ import annotations

import io

import pytest

from strata_cli.confirming import confirm
from strata_cli.errors import CliError


class Terminal(io.StringIO):
    """Text of somebody who sits there."""

    def isatty(self) -> bool:
        return True


def terminals(monkeypatch: pytest.MonkeyPatch, answer: str) -> Terminal:
    """Sit there with an answer; return what is shown."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", shown)
    return shown


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes_goes_on(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """The question says what is about to happen."""
    shown = terminals(monkeypatch, answer)
    confirm("Topic t is deleted", yes=False)
    assert shown.getvalue() == "Topic t is deleted. Go on? [y/N] "


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "what?\n"])
def test_everything_else_does_not(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Also the end of the input."""
    terminals(monkeypatch, answer)
    with pytest.raises(CliError, match="nothing was changed"):
        confirm("Topic t is deleted", yes=False)


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither whoever said --yes, nor a script, which has no terminal to answer at."""
    shown = terminals(monkeypatch, "")
    confirm("Topic t is deleted", yes=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    confirm("Topic t is deleted", yes=False)
    assert shown.getvalue() == ""
