"""docs/troubleshooting.md names every alert and every error code that a client can see."""

from __future__ import annotations

import re

from apache.rocketmq.v2 import definition_pb2
from tests.integration.broker.code_matrix import BEYOND, BY_CLIENTS, MATRIX
from tests.repo.sources import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
_ROW = re.compile(r"^\| (\d{5}) \| (\w+) \| (.+?) \|", re.MULTILINE)


def test_every_code_has_a_row_with_its_number() -> None:
    """The table is that of the protocol, in its order."""
    codes = definition_pb2.Code.items()
    expected = [(str(number), name) for name, number in codes if name != "CODE_UNSPECIFIED"]
    assert [row[:2] for row in _ROW.findall(PAGE)] == expected


def test_a_code_that_is_answered_is_not_called_unused() -> None:
    """A code that a broker answers, or passes on, has a meaning; one never answered says so."""
    unused = {name for _, name, meaning in _ROW.findall(PAGE) if meaning.startswith("never")}
    answered = {
        code for table in (MATRIX, BEYOND, BY_CLIENTS) for row in table.values() for code in row
    }
    assert answered & unused == set()
    code = "\n".join(
        path.read_text()
        for folder in ("services/broker", "services/cli", "libs/mq")
        for path in (ROOT / folder).rglob("*.py")
        # The table of all codes.
        if path.name != "errors.py" or folder == "services/cli"
    )
    assert [name for name in sorted(unused) if re.search(rf"\b{name}\b", code)] == []


def test_every_alert_has_a_link_to_its_runbook() -> None:
    """A symptom that is an alert is found by the alert's name."""
    alerts = re.findall(r"alert: (\w+)", (ROOT / "charts/strata/files/rules.yaml").read_text())
    assert alerts
    assert [name for name in alerts if f"[{name}](runbooks/{name}.md)" not in PAGE] == []
