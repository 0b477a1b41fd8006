"""Reasons for refusing a call of MetaService, raised where decided and again at the caller."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2


class MetaRefused(Exception):
    """The nameserver answered, but not OK.

    Attributes:
        outcome: why, for programs.
        reason: one clear line for people.
    """

    def __init__(self, outcome: meta_pb2.MetaOutcome.ValueType, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
