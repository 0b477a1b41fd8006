"""The port of store liveness that the driver needs, and its version for a node alone."""

from __future__ import annotations

from typing import Protocol

from strata_multiraft.replica.replica import Replica


class Liveness(Protocol):
    """Knows which other nodes are alive and which raft groups may rest (rules 4, 13, 14).

    Called on the event loop by `MultiRaft`, which ticks every raft group that does not rest.
    """

    def may_rest(self, replica: Replica) -> bool:
        """Tell whether a raft group led from here needs no ticks now; asked before each tick.

        After True the driver stops ticking it until something happens to it.
        """

    def woken(self, replica: Replica) -> None:
        """The replica rested and is ticked again."""

    def removed(self, raft_group: int) -> None:
        """The node hosts the raft group no longer."""

    def may_campaign(self) -> bool:
        """Tell whether this node may ask for votes; leadership transfers are exempt."""

    def may_lead(self, node_id: str) -> bool:
        """Tell whether another node may be given a leadership, as far as is known here."""

    def is_silent(self, node_id: str) -> bool:
        """Tell whether another node is known here and is not heard."""

    def tell_disk_mark(self) -> None:
        """This node's disk mark has changed: the next leaders must know it (rule 11)."""


class NoLiveness:
    """No other nodes: nothing rests that a driver on its own would tick."""

    def may_rest(self, replica: Replica) -> bool:
        """See `Liveness.may_rest`."""
        return False

    def woken(self, replica: Replica) -> None:
        """See `Liveness.woken`."""

    def removed(self, raft_group: int) -> None:
        """See `Liveness.removed`."""

    def may_campaign(self) -> bool:
        """See `Liveness.may_campaign`."""
        return True

    def may_lead(self, node_id: str) -> bool:
        """See `Liveness.may_lead`."""
        return True

    def is_silent(self, node_id: str) -> bool:
        """See `Liveness.is_silent`."""
        return False

    def tell_disk_mark(self) -> None:
        """See `Liveness.tell_disk_mark`."""
