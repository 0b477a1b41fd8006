"""Constructors are short: at most eight parameters, at most three of them given by position.

A longer one names single parts that have a meaning together: a small record, a frozen section of
the configuration, a port. By position only the types of neighbours keep two arguments from being
swapped, so the fourth and later ones have names. Frozen sections, rows and messages have no
`__init__` of their own and are not meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.sources import ROOT, nodes_of, written_code

MAX_PARAMETERS = 8
MAX_POSITIONAL = 3


def constructors() -> Iterator[tuple[str, ast.arguments]]:
    for path in written_code("libs", "services", "testing"):
        for each in nodes_of(path):
            if isinstance(each, ast.ClassDef):
                name = f"{path.relative_to(ROOT)}:{each.name}"
                for method in each.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        yield name, method.args


def positional(arguments: ast.arguments) -> int:
    return len(arguments.posonlyargs) + len(arguments.args) - 1


def test_no_constructor_has_more_than_eight_parameters() -> None:
    wide = [
        name
        for name, arguments in constructors()
        if positional(arguments) + len(arguments.kwonlyargs) > MAX_PARAMETERS
    ]
    assert wide == []


def test_parameters_beyond_three_are_given_by_name() -> None:
    wide = [name for name, arguments in constructors() if positional(arguments) > MAX_POSITIONAL]
    assert wide == []


def test_records_of_parts_have_one_idea() -> None:
    """A record that only bundles parts is no way round the limit: it has at most eight, too."""
    bags = [
        f"{path.relative_to(ROOT)}:{each.name}"
        for path in written_code("libs", "services", "testing")
        for each in nodes_of(path)
        if isinstance(each, ast.ClassDef)
        and each.name.endswith("Parts")
        and sum(isinstance(line, ast.AnnAssign) for line in each.body) > MAX_PARAMETERS
    ]
    assert bags == []
