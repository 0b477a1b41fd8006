"""Rows that simulated row stores lose, and rows that they keep."""

from __future__ import annotations

import random

from strata_sim.stores import SimMetadataStore, SimStore

KEYS = [b"%02d" % number for number in range(20)]


def test_death_leaves_what_was_flushed_and_a_prefix() -> None:
    """A dead process leaves all flushed batches and the first few of the others, whole."""
    left_over = set()
    for seed in range(50):
        store = SimStore()
        for key in KEYS:
            batch = store.new_batch()
            batch.put(key, b"a")
            batch.put(key + b"'", b"b")
            store.write(batch)
            if key == b"09":
                store.flush()
        left = store.after_death(random.Random(seed))
        kept = [key for key, _ in left.scan(b"", b"~")]
        assert kept[:20] == [each for key in KEYS[:10] for each in (key, key + b"'")]
        assert kept == sorted(kept)
        assert len(kept) % 2 == 0
        left_over.add(len(kept))
    assert {20, 40} <= left_over


def test_power_loss_leaves_what_was_synced_and_a_prefix() -> None:
    """A power loss leaves all synced batches and the first few of the others."""
    left_over = set()
    for seed in range(50):
        store = SimMetadataStore()
        for key in KEYS:
            store.write([(key, b"a")], [KEYS[0]] if key == b"15" else [])
            if key == b"09":
                store.sync()
        left = store.after_power_loss(random.Random(seed))
        kept = [key for key, _ in left.scan(b"", b"~")]
        assert kept == KEYS[: len(kept)] or kept == KEYS[1 : len(kept) + 1]
        assert (KEYS[0] in kept) == (b"15" not in kept)
        left_over.add(len(kept))
    assert min(left_over) == 10
    assert max(left_over) == 19
