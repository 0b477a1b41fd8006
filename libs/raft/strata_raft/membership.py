"""Membership of the raft group, entry by entry.

A configuration takes effect when its entry is appended and is undone when the entry is truncated
(rule 12), so the history above the last committed configuration is kept. A change always goes
through a joint configuration: `begin_change` gives the joint one, `finish_change` the final one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from strata_raft.types import Configuration, Payload

_COUNTS = struct.Struct(">HHH")


class Membership:
    """The configurations of a replica's log: a base, and one per configuration entry above it."""

    __slots__ = ("_history",)

    def __init__(
        self,
        base: Configuration,
        entries: Sequence[tuple[int, Configuration]] = (),
        *,
        base_index: int = 0,
    ) -> None:
        self._history: list[tuple[int, Configuration]] = [(base_index, base), *entries]

    @property
    def current(self) -> Configuration:
        """The configuration in force."""
        return self._history[-1][1]

    @property
    def index(self) -> int:
        """The index of the entry that brought it; 0: the base."""
        return self._history[-1][0]

    def may_campaign(self, replica_id: int) -> bool:
        """Tell whether the replica votes now, or will again if what is uncommitted is undone.

        A replica that an uncommitted configuration leaves out must still campaign: its log may be
        the only one that can win the vote that commits it (thesis 4.2.2).
        """
        return any(configuration.may_vote(replica_id) for _, configuration in self._history)

    def append(self, index: int, configuration: Configuration) -> None:
        """Put a configuration in force."""
        assert index > self.index
        self._history.append((index, configuration))

    def truncate(self, index: int) -> bool:
        """Undo configurations from `index` on; return whether one was undone."""
        length = len(self._history)
        while len(self._history) > 1 and self._history[-1][0] >= index:
            self._history.pop()
        return len(self._history) != length

    def commit_to(self, index: int) -> None:
        """Forget what a committed configuration replaced: it can no longer be undone."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def restore(self, index: int, configuration: Configuration) -> None:
        """Start again from a snapshot's configuration."""
        self._history = [(index, configuration)]


def begin_change(
    current: Configuration, voters: frozenset[int], learners: frozenset[int]
) -> Configuration:
    """Return the joint configuration that leads from `current` to these voters and learners.

    Raises:
        ValueError: no voter, a replica in both sets, or a change that is not finished.
    """
    if not voters:
        raise ValueError("a raft group needs a voter")
    if voters & learners:
        raise ValueError(f"replicas {sorted(voters & learners)} cannot be voter and learner")
    if current.is_joint():
        raise ValueError("the last membership change is not finished")
    return Configuration(voters, learners, outgoing=current.voters)


def finish_change(joint: Configuration) -> Configuration:
    """Return the final configuration of a change."""
    return Configuration(joint.voters, joint.learners)


def encode_configuration(configuration: Configuration) -> Payload:
    """Return the payload of a configuration entry.

    Layout: u16 count of voters, learners and outgoing, then their replica ids as u64, ascending.
    """
    groups = (configuration.voters, configuration.learners, configuration.outgoing)
    ids = [replica_id for group in groups for replica_id in sorted(group)]
    return (_COUNTS.pack(*map(len, groups)) + struct.pack(f">{len(ids)}Q", *ids),)


def decode_configuration(payload: Payload) -> Configuration:
    """Return the configuration of an entry's payload.

    Raises:
        ValueError: the payload is not one.
    """
    data = b"".join(payload)
    try:
        voters, learners, outgoing = _COUNTS.unpack_from(data)
        ids = struct.unpack(f">{voters + learners + outgoing}Q", data[_COUNTS.size :])
    except struct.error as error:
        raise ValueError(f"not a configuration: {error}") from error
    return Configuration(
        frozenset(ids[:voters]),
        frozenset(ids[voters : voters + learners]),
        frozenset(ids[voters + learners :]),
    )
