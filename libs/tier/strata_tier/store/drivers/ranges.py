"""Ranges of HTTP: never empty, never beginning at the end."""

from __future__ import annotations

from strata_tier.store.ports import ObjectStore, ObjectTooShortError


async def length_to_ask(
    store: ObjectStore, key: str, position: int, length: int | None
) -> int | None:
    """Return how many bytes to ask for from `position`.

    A range that HTTP cannot express is settled here, by asking for the object's size.

    Returns:
        A length of at least 1; 0: there is nothing to read; None: read the whole object.

    Raises:
        ObjectTooShortError: the object ends before the range does.
        StoreError: its size could not be had.
    """
    if length or (length is None and not position):
        return length
    size = (await store.head(key)).size_bytes
    if position > size:
        raise ObjectTooShortError(store.name, key, f"ends at {size}, not {position}")
    return 0 if length == 0 else size - position
