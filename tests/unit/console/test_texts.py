"""The two catalogues of texts: the same keys, and one for everything that the server names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from strata_console.act_table import ACTS

SOURCE = Path(__file__).resolve().parents[3] / "services/console/web/src"


def catalogue(language: str) -> dict[str, str]:
    """The texts of a language."""
    texts: dict[str, str] = json.loads((SOURCE / f"{language}.json").read_text(encoding="utf-8"))
    return texts


def test_both_languages_have_the_same_keys() -> None:
    """No text is missing in one of them, and none is empty in one only."""
    english, chinese = catalogue("en"), catalogue("zh")
    assert list(english) == list(chinese)
    assert [key for key in english if bool(english[key]) != bool(chinese[key])] == []


def test_both_languages_fill_in_the_same_words() -> None:
    """Words in braces are the same in both."""
    english, chinese = catalogue("en"), catalogue("zh")
    words = re.compile(r"\{(\w+)\}")
    differ = [
        key
        for key in english
        if sorted(words.findall(english[key])) != sorted(words.findall(chinese[key]))
    ]
    assert differ == []


def test_every_act_and_field_has_a_text() -> None:
    """Forms are made from the server's table: each name in it has a label."""
    texts = catalogue("en")
    wanted = {f"act.{name}" for name in ACTS}
    wanted |= {f"field.{field.name}" for act in ACTS.values() for field in act.fields}
    wanted |= {f"kind.{field.kind}" for act in ACTS.values() for field in act.fields}
    assert sorted(wanted - texts.keys()) == []


def test_every_text_that_the_page_asks_for_is_there() -> None:
    """Keys that the source writes out are in the catalogue."""
    asked = {
        key
        for path in SOURCE.rglob("*.ts*")
        for key in re.findall(r"\btext\(\"([a-z_.-]+)\"", path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 50
    assert sorted(asked - catalogue("en").keys()) == []


def test_every_act_that_the_page_offers_exists() -> None:
    """Buttons name acts of the server's table."""
    offered = {
        name
        for path in SOURCE.rglob("*.tsx")
        for name in re.findall(r"act=\"([a-z-]+)\"", path.read_text(encoding="utf-8"))
    }
    assert len(offered) > 20
    assert sorted(offered - ACTS.keys()) == []
