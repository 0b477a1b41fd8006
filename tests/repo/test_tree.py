"""The repository's own rules: size of files and functions, words, hosts, links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repo.sources import ROOT, nodes_of, tracked, written_code

FILE_LINES_MAX = 520
FUNCTION_LINES_MAX = 70


def test_no_file_holds_more_than_one_idea() -> None:
    """A Python file stays under the line limit."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in written_code()
        if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_no_function_is_longer_than_a_page() -> None:
    """A function stays under the line limit, its docstring included."""
    long = {}
    for path in written_code():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_no_stub_or_reminder_is_left() -> None:
    """No reminder comments, no bare task, no body that only raises NotImplementedError."""
    banned = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError|asyncio\.create_task\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in written_code()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(line)
    ]
    assert found == []


def test_addresses_are_on_the_list_and_no_path_names_a_machine() -> None:
    """The repository builds anywhere: lock files are host-free, nothing names a home folder."""
    allowed = re.compile(
        r"127\.0\.0\.1|localhost|\[|\{|[\w.]+\.invalid|www\.apache\.org"
        r"|json-schema\.org|www\.w3\.org|HOST"
        # Services of docker-compose.yml.
        r"|(?:s3|prometheus)$"
    )
    homes = re.compile(r"(?<![\w.])/(work|root|home/\w+)/")
    found = []
    for path in tracked():
        if path.name == "package-lock.json":
            # Names funding pages of packages; registries are under "resolved", which must not be.
            assert '"resolved"' not in path.read_text(), path
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            hosts = re.findall(r"https?://([^\s/\"'<>)`:]*)", line)
            if any(not allowed.match(host) for host in hosts) or homes.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link of a Markdown page names an existing file."""
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"


def test_time_and_waiting_have_one_double_each() -> None:
    """Tests wait by `until` and move a `ManualClock`; what is another clock says here why."""
    allowed = {
        ("testing/strata_testing/clock.py", "ManualClock"),
        ("testing/strata_testing/waiting.py", "until"),
        # It follows the time of an event loop that leaps.
        ("testing/strata_testing/leaping_loop.py", "LoopClock"),
        # They follow the time of a simulation.
        ("testing/strata_sim/machine.py", "MachineClock"),
        ("testing/strata_sim/liveness_world.py", "SimNode"),
        # It goes on whenever it is looked at.
        ("tests/unit/runtime/test_lifecycle.py", "FastClock"),
    }
    found = set()
    for path in written_code("tests", "testing"):
        name = str(path.relative_to(ROOT))
        module, *_ = nodes = nodes_of(path)
        assert isinstance(module, ast.Module)
        for each in nodes:
            if isinstance(each, ast.ClassDef):
                methods = {one.name for one in each.body if isinstance(one, ast.FunctionDef)}
                if {"monotonic_s", "wall_ms"} <= methods:
                    found.add((name, each.name))
        found |= {
            (name, each.name)
            for each in module.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name.strip("_") in ("until", "eventually", "wait_until")
        }
    assert found == allowed
