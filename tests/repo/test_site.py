"""The pages as a site: anchors that lead somewhere, a navigation that is complete, portable lists.

`make site` runs the generator, which checks the same in its own way; this needs no generator.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.repo.sources import ROOT, tracked

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_ANCHORED = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ITEM = re.compile(r"([-*]|\d+\.) ")
PAGES = tracked("*.md")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_", ROOT / "scripts/build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that both GitHub and the generator give to the headings of a page."""
    found: Counter[str] = Counter()
    result = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower().strip()
        kept = re.sub(r"[^\w\s-]", "", plain)
        slug = re.sub(r"\s", "-", kept)
        if slug == re.sub(r"[-\s]+", "-", kept) and not found[slug]:
            result.add(slug)
        found[slug] += 1
    return result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_of_links_exist(page: Path) -> None:
    """A link to a heading names one that has the same anchor on GitHub and on the site."""
    for name, anchor in _ANCHORED.findall(prose(page)):
        if "://" not in name:
            assert anchor in anchors(page.parent / name if name else page), f"{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_list_after_a_paragraph_has_a_blank_line_before_it(page: Path) -> None:
    """The generator shows a list that follows a line of text as a part of that line."""
    before = ""
    for line in prose(page).split("\n"):
        inside = not before or before.startswith(" ") or _ITEM.match(before)
        assert inside or not _ITEM.match(line), f"{page.relative_to(ROOT)}: {line}"
        before = line


def test_every_page_is_in_the_navigation_once(site: ModuleType) -> None:
    """No page of the site is out of reach, and none is listed twice."""
    pages = sorted(name for name in site.reachable() if name.endswith(".md"))
    assert sorted(listed(site.navigation(pages))) == pages
    assert "docs/quickstart.md" in pages
    assert "docs/runbooks/README.md" in pages


def test_a_page_that_no_section_names_is_listed_all_the_same(site: ModuleType) -> None:
    """A new page needs no change of the sections."""
    pages = ["README.md", "docs/quickstart.md", "docs/runbooks/StrataNodeDown.md"]
    entries = site.navigation([*pages, "tests/compat/clients/README.md"])
    assert [next(iter(entry)) for entry in entries] == ["StrataMQ", "Start", "Runbooks", "More"]


def test_sections_name_no_page_twice(site: ModuleType) -> None:
    """A page has one place."""
    names = [name for _, names in site.SECTIONS for name in names]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def listed(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the paths of a navigation."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from listed(value)
