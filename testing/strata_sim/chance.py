"""Sources of chance: one per purpose, so that draws from one source do not change another."""

from __future__ import annotations

import random


def source(seed: int, purpose: str) -> random.Random:
    """Return the source of a run for a purpose: the same numbers for the same two."""
    return random.Random(f"{seed}/{purpose}")
