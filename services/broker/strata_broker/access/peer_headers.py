"""Headers with which a broker calls another one: signed with the cluster's key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from strata_broker.access.authentication import AUTHORIZATION, DATE
from strata_broker.metadata.metadata import MetadataView
from strata_mq.access import date_of, peer_access_key, peer_secret_key, sign
from strata_runtime.clock import Clock


class PeerHeaders:
    """See the module docstring. It signs even without access control: other brokers may have it.

    Args:
        view: knows the cluster keys.
        clock: wall time.
    """

    def __init__(self, view: MetadataView, clock: Clock) -> None:
        self._view = view
        self._clock = clock

    def __call__(self) -> Sequence[tuple[str, str]]:
        """Return the headers of one call; none as long as there is no cluster key."""
        keys = self._view.access.cluster_keys()
        if not keys:
            return ()
        # The oldest: every broker knows it.
        key = keys[-1]
        date = date_of(datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC))
        signed = sign(peer_access_key(key.key_id), peer_secret_key(key.secret), date)
        return ((DATE, date), (AUTHORIZATION, signed))
