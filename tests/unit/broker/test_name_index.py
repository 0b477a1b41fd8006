"""Names in order: the same as a sorted list, whatever came and went."""

from __future__ import annotations

import asyncio
import random
from itertools import islice

from strata_broker.metadata.name_index import Name, NameIndex, key_of
from strata_broker.servicers.pages import page, page_of_names


def filled(*names: Name) -> NameIndex:
    index = NameIndex()
    for name in names:
        index.add(key_of(name))
    return index


def test_the_index_is_a_sorted_list() -> None:
    """Names from any place on are those of a sorted set, after any additions and removals."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    index, known = NameIndex(), set[Name]()
    for step in range(40_000):
        name = (chooser.choice(("", "n", "n-1")), f"t{chooser.randrange(9_000)}")
        if name in known and chooser.random() < 0.5:
            known.discard(name)
            index.remove(key_of(name))
        elif name not in known:
            known.add(name)
            index.add(key_of(name))
        if step % 4_000 == 0:
            ordered = sorted(known)
            assert len(index) == len(ordered)
            for start in (("", ""), ("n", "t5"), name, ("z", "")):
                assert list(index.after(start)) == [each for each in ordered if each > start]
                at_least = [each for each in ordered if each >= start]
                assert list(islice(index.starting_at(start), 50)) == at_least[:50]
            wanted = [each for each in ordered if each[0] == "n" and each[1].startswith("t88")]
            assert list(index.beginning_with("n", "t88")) == wanted
    for name in sorted(known):
        index.remove(key_of(name))
    index.remove(key_of(("n0", "never")))
    assert (len(index), list(index.after(("", "")))) == (0, [])


async def test_pages_join_without_gaps() -> None:
    """Every name of a list is on one page, whatever the size of the pages."""
    names = [(space, f"{kind}{number:03}") for space in ("", "a", "b") for kind in "xy"
             for number in range(40)]  # fmt: skip
    index = filled(*names)
    for size in (1, 7, 40, 1_000):
        for namespace in (None, "", "a", "nowhere"):
            for prefix in ("", "y", "y01", "z"):
                found: list[Name] = []
                token = ""
                while True:
                    page, token = await page_of_names(
                        lambda: index,
                        lambda name: name[1] != "y011",
                        size,
                        token,
                        namespace=namespace,
                        prefix=prefix,
                    )
                    assert len(page) <= size
                    found += page
                    if not token:
                        break
                assert found == [
                    name
                    for name in sorted(names)
                    if namespace in (None, name[0])
                    and name[1].startswith(prefix)
                    and name[1] != "y011"
                ]


async def test_a_token_tells_no_name_that_is_hidden() -> None:
    """A caller that may see little gets whole pages; other work goes on meanwhile."""
    index = filled(*(("", f"t{number:06}") for number in range(50_000)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    found: list[Name] = []
    token = ""
    while True:
        page, token = await page_of_names(
            lambda: index, lambda name: name[1].endswith("9999"), 2, token
        )
        found += page
        if not token:
            break
        assert token == "/".join(page[-1])
    counting.cancel()
    assert found == [("", f"t{number}9999") for number in ("00", "01", "02", "03", "04")]
    assert turns >= 4


def test_pages_of_clients_join_whatever_their_ids() -> None:
    """A client chooses its id: one with slashes ends no list, and is on one page."""
    ids = sorted(("host", "host/1", "host/1/2", "host/2", "/", "//", "a"))
    rows = [((client_id, ""), client_id) for client_id in ids]
    for size in (1, 2, 3):
        found: list[str] = []
        token = ""
        for _ in ids:
            some, token = page(rows, size, token)
            found += some
            if not token:
                break
        assert (found, token) == (ids, "")
