"""Keys by a number of them: as a plain dictionary of sets would have them."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from strata_storage.base.key_index import KeyIndex

Key = tuple[int, int]
KEYS = st.tuples(st.integers(0, 3), st.integers(0, 3))
STEPS = st.lists(st.tuples(st.sampled_from(("add", "discard", "pop", "clear")), KEYS), max_size=60)


@given(STEPS)
def test_it_holds_what_sets_would_hold(steps: list[tuple[str, Key]]) -> None:
    index: KeyIndex[Key] = KeyIndex()
    expected: defaultdict[int, set[Key]] = defaultdict(set)
    for step, key in steps:
        number = key[0]
        if step == "add":
            index.add(number, key)
            expected[number].add(key)
        elif step == "discard":
            index.discard(number, key)
            expected[number].discard(key)
        elif step == "pop":
            assert set(index.pop(number)) == expected.pop(number, set())
        elif key == (0, 0):
            index.clear()
            expected.clear()
        for each in range(4):
            assert set(index.of(each)) == expected[each]
        assert set(index.numbers()) == {each for each, keys in expected.items() if keys}
        assert index.keys() == set().union(*expected.values())
        assert len(index) == sum(map(bool, expected.values()))


def test_zero_is_a_number_and_a_key() -> None:
    """Nothing is taken for absent because it is false."""
    index: KeyIndex[int] = KeyIndex()
    index.add(0, 0)
    assert list(index.of(0)) == [0]
    index.add(0, 1)
    assert sorted(index.of(0)) == [0, 1]
    index.discard(0, 0)
    assert list(index.pop(0)) == [1]
    assert len(index) == 0
