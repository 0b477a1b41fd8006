"""docs/upgrade.md says the versions that the code writes."""

from __future__ import annotations

import re

from strata_cli.machine import folder
from strata_cli.processes import data_folder
from strata_metadata.rows import ROW_FORMAT
from strata_tier.objects import layout
from tests.repo.sources import ROOT


def test_versions_are_those_of_the_code() -> None:
    """An operator who compares the versions of two releases finds them on the page."""
    page = (ROOT / "docs/upgrade.md").read_text()
    section = page.partition("## Versions of what is stored")[2].partition("\n\nA folder")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| ")][1:]
    shown = {
        what.strip().split(",")[0].split(" of ")[0]: int(number[1])
        for what, version in rows
        if (number := re.search(r"(\d+) *$", version))
    }
    assert shown == {
        "data folder": data_folder.FORMAT_VERSION,
        "folder": folder.FORMAT_VERSION,
        "objects": layout.FORMAT_VERSION,
        "metadata rows": ROW_FORMAT,
    }
