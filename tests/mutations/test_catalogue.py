"""The mistakes that are planted still have their places; `make mutations` tries them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutations.catalogue import MUTATIONS, ROOT
from tests.mutations.mutation import Mutation
from tests.mutations.plant import changed_source
from tests.sim.mutations import MUTATIONS as OF_CLUSTERS

RULES = range(1, 41)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_place_is_still_there(mutation: Mutation) -> None:
    """The code has the text that is to be changed exactly once, and is valid with the mistake."""
    compile(changed_source(mutation), mutation.file, "exec")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_are_still_there(mutation: Mutation) -> None:
    """Each names tests by file and name, and what they must say is a pattern."""
    assert mutation.tests and mutation.finds
    re.compile(mutation.finds)
    for test in mutation.tests:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"def {name.partition('[')[0]}\b", source), test


def test_every_rule_has_a_mistake_that_is_found() -> None:
    """Every rule in ARCHITECTURE.md has a test that fails when the rule is broken."""
    rules = {mutation.rule for mutation in MUTATIONS}
    rules |= {mutation.rule for mutation in OF_CLUSTERS.values()}
    assert not set(RULES) - rules


def test_names_are_used_once() -> None:
    """A mistake is planted by its name."""
    names = Counter(mutation.name for mutation in MUTATIONS)
    assert not [name for name, count in names.items() if count > 1]
