"""Decisions have a number, a status and a date, and the index lists each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "adr"
_STATUS = re.compile(r"Status: (proposed|accepted|superseded by \d{4})\. Date: \d{4}-\d\d-\d\d\.")
DECISIONS = sorted(FOLDER.glob("[0-9]*.md"))


def test_numbers_have_no_holes_and_no_twins() -> None:
    """A number names one decision."""
    assert [path.name[:4] for path in DECISIONS] == [
        f"{at:04}" for at in range(1, len(DECISIONS) + 1)
    ]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name[:4])
def test_a_decision_says_its_title_status_and_date(path: Path) -> None:
    """The index has the same title."""
    title, blank, status, *_ = path.read_text().split("\n")
    number = path.name[:4]
    assert title.startswith(f"# {number}: ")
    assert blank == ""
    assert _STATUS.fullmatch(status), status
    row = f"| [{number}]({path.name}) | {title.removeprefix(f'# {number}: ')} |"
    assert row in (FOLDER / "README.md").read_text()
