"""A broker's identity: its name, its life and its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Identity of this broker.

    Attributes:
        node_id: its name among the nodes.
        boot_id: chosen at random when the process starts; names its append batches.
        host: address that clients reach it under, without port; the port is the edge's.
        rack: failure domain, for instance a zone; "" if there is none.
        machine: what it shares with other brokers; "" if it is alone.
    """

    node_id: str
    boot_id: int
    host: str
    rack: str = ""
    machine: str = ""
