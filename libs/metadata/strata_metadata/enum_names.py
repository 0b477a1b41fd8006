"""Names of enum values that another process sent; a newer process may send unknown values."""

from __future__ import annotations

from typing import Any


def name_of(enum: Any, number: int) -> str:
    """Return the name of an enum's value.

    `enum.Name` raises for a value that this process does not know, and an answer of another process
    must not end a permanent loop (rule 33).

    Args:
        enum: for instance `storage_pb2.Outcome`.
        number: the value, as it was received.

    Returns:
        The name in the schema; for an unknown value the enum's name and the number.
    """
    known = enum.DESCRIPTOR.values_by_number.get(number)
    return f"{enum.DESCRIPTOR.name} {number}" if known is None else str(known.name)
