"""The nameservers of one cluster, as configured: addresses, and how they are reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata_metadata.channels import ChannelFactory

SaveFormation = Callable[[str, Sequence[int]], None]
"""Writes cluster id and initial replica ids to the identity, synced; called in a thread."""


@dataclass(frozen=True, slots=True)
class NameserverCluster:
    """The nameservers of one cluster, as configured.

    Attributes:
        endpoint: address of this one, as the others reach it.
        endpoints: addresses of all of them, this one's among them.
        open_channel: makes a channel to an address.
        save_formation: see `SaveFormation`.
        rack: failure domain of this one.
    """

    endpoint: str
    endpoints: Sequence[str]
    open_channel: ChannelFactory
    save_formation: SaveFormation
    rack: str = ""

    def __post_init__(self) -> None:
        if self.endpoint not in self.endpoints:
            raise ValueError(f"{self.endpoint} is not among the nameservers {self.endpoints}")
