"""One name stands for one class, and the keys of the configuration have one pattern."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.repo.sources import ROOT, nodes_of, written_code


def public_classes() -> dict[str, list[str]]:
    """Return the names of public classes of the shipped packages, with their files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in written_code("libs", "services"):
        name = path.relative_to(ROOT)
        module = nodes_of(path)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(name))
    return found


def test_no_two_classes_have_one_name() -> None:
    """A search for a name finds one class."""
    assert {name: files for name, files in public_classes().items() if len(files) > 1} == {}


def test_configuration_keys_have_one_pattern() -> None:
    """`max_` comes first, the unit last, a rate is per `s`, and what repeats has an interval."""
    keys = re.findall(r"^\| `([a-z0-9_]+)` \|", (ROOT / "docs/configuration.md").read_text(), re.M)
    assert len(keys) > 200
    odd = re.compile(r"_max(_|$)|_min(_|$)|_per_second$|_period_|(?<!_per)_s$|_seconds$|_minutes$")
    assert [key for key in keys if odd.search(key)] == []
