"""Selects the entries that are sent to followers before messages are (rule 15)."""

from __future__ import annotations

from strata_mq.commands import CommandKind
from strata_raft import Entry, EntryKind


def is_lease_entry(entry: Entry) -> bool:
    """Tell whether an entry takes, acks or releases leases, or is raft's own: all are small."""
    if entry.kind is not EntryKind.NORMAL:
        return True
    return bool(entry.payload) and entry.payload[0][:1] == _LEASES


_LEASES = bytes((CommandKind.LEASES,))
