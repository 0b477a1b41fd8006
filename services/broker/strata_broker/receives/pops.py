"""The parts of a broker that take messages from storage nodes and give them back."""

from __future__ import annotations

from dataclasses import dataclass

from strata_broker.receives.popper import Popper
from strata_broker.receives.takebacks import Takebacks
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.storage_client.pop_ends import PopEnder
from strata_broker.storage_client.replica_reads import ReplicaReads


@dataclass(frozen=True, slots=True)
class Pops:
    """How messages are taken from storage nodes.

    Attributes:
        popper: takes leases.
        reads: reads the bytes of leased messages, from any replica.
        ender: ends pops whose client has gone.
        takebacks: give back what a client did not get.
        unclaimed: gives back what a client got and does not read.
    """

    popper: Popper
    reads: ReplicaReads
    ender: PopEnder
    takebacks: Takebacks
    unclaimed: Unclaimed
