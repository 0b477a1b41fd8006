"""Errors leave `except*` as a group on Python 3.11.2, so nothing is raised in one."""

from __future__ import annotations

import ast

from tests.repo.sources import ROOT, nodes_of, written_code


def test_nothing_is_raised_in_except_star() -> None:
    """`except BaseExceptionGroup` and `first_failure` do it the same way on every Python."""
    raised = [
        f"{path.relative_to(ROOT)}:{line.lineno}"
        for path in written_code("libs", "services", "testing")
        for each in nodes_of(path)
        if isinstance(each, ast.TryStar)
        for handler in each.handlers
        for line in ast.walk(handler)
        if isinstance(line, ast.Raise)
    ]
    assert raised == []
