"""Admission of calls that wait: a limit in calls and bytes, and a share for each owner (rule 34).

A call is admitted before it is parsed, by its headers and its connection, so that a refused call
costs next to nothing. Invariant: an admitted call is counted until `leave`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from strata_broker.base import errors
from strata_broker.base.shares import Owner, OwnerShares
from strata_edge.addresses import network_of_peer
from strata_mq.requests import Code, RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Limits of calls that wait.

    Attributes:
        of: name of the calls, in the plural; part of the limits' names.
        most: most calls that may wait.
        most_each: the same for one owner, by kind: client, connection, address, namespace.
        most_bytes: most bytes of all their requests.
        most_bytes_each: the same for one client, connection or address.
        most_request_bytes: largest request.
    """

    of: str
    most: int
    most_each: Mapping[str, int]
    most_bytes: int
    most_bytes_each: int
    most_request_bytes: int


class WaitLimits(Protocol):
    """Configuration keys of calls that wait."""

    max_parked: int
    max_parked_per_client: int
    max_parked_per_connection: int
    max_parked_per_address: int
    max_parked_per_namespace: int
    max_request_bytes: int
    max_parked_bytes: int
    max_parked_bytes_per_client: int


def options_of(of: str, config: WaitLimits) -> AdmissionOptions:
    """Return the limits of calls that wait from their configuration."""
    return AdmissionOptions(
        of=of,
        most=config.max_parked,
        most_each={
            "client": config.max_parked_per_client,
            "connection": config.max_parked_per_connection,
            "address": config.max_parked_per_address,
            "namespace": config.max_parked_per_namespace,
        },
        most_bytes=config.max_parked_bytes,
        most_bytes_each=config.max_parked_bytes_per_client,
        most_request_bytes=config.max_request_bytes,
    )


class Admitted:
    """One call that waits; see `Admission.enter`."""

    __slots__ = ("_admission", "_left", "namespace", "owners", "size_bytes")

    def __init__(self, admission: Admission, owners: tuple[Owner, ...], size_bytes: int) -> None:
        self._admission = admission
        self._left = False
        self.owners = owners
        self.size_bytes = size_bytes
        self.namespace: tuple[Owner, ...] = ()

    def of_namespace(self, namespace: str) -> None:
        """Charge the namespace, which is known once the request is parsed.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        owner = _namespace_owner(namespace)
        if not self._admission.calls.try_take(owner):
            raise errors.too_many_requests()
        self.namespace = owner

    def leave(self) -> None:
        """End the wait; a second time does nothing."""
        if not self._left:
            self._left = True
            self._admission.give_back(self)


class Admission:
    """See the module docstring. Used on the event loop only."""

    def __init__(self, options: AdmissionOptions, metrics: Metrics) -> None:
        self._options = options
        of = options.of
        self._limit = Limit(of, options.most, of, metrics=metrics)
        self._bytes = Limit(f"requests of {of}", options.most_bytes, "bytes", metrics=metrics)
        self.calls = OwnerShares(of, options.most_each, metrics)
        each = dict.fromkeys(options.most_each, options.most_bytes_each)
        self._byte_shares = OwnerShares(f"bytes of {of}", each, metrics)

    @property
    def used(self) -> int:
        """Number of calls that wait."""
        return self._limit.used

    def enter(self, client_id: str, peer: str, size_bytes: int) -> Admitted:
        """Let a call wait.

        Args:
            client_id: from the call's metadata.
            peer: `host:port` of its connection.
            size_bytes: of its request.

        Raises:
            RequestError: TOO_MANY_REQUESTS; PAYLOAD_TOO_LARGE.
        """
        most = self._options.most_request_bytes
        if size_bytes > most:
            raise RequestError(Code.PAYLOAD_TOO_LARGE, f"a request has at most {most} bytes")
        owners = _owners(client_id, peer)
        if not self.calls.try_take(owners):
            raise errors.too_many_requests()
        if not self._byte_shares.try_take(owners, size_bytes):
            self.calls.give_back(owners)
            raise errors.too_many_requests()
        if not self._limit.try_take():
            self.calls.give_back(owners)
            self._byte_shares.give_back(owners, size_bytes)
            raise errors.too_many_requests()
        if not self._bytes.try_take(size_bytes):
            self.calls.give_back(owners)
            self._byte_shares.give_back(owners, size_bytes)
            self._limit.give_back()
            raise errors.too_many_requests()
        return Admitted(self, owners, size_bytes)

    def give_back(self, admitted: Admitted) -> None:
        """See `Admitted.leave`."""
        self.calls.give_back((*admitted.owners, *admitted.namespace))
        self._byte_shares.give_back(admitted.owners, admitted.size_bytes)
        self._limit.give_back()
        self._bytes.give_back(admitted.size_bytes)


# A client has many calls that wait, and each of them keeps its owners.
@lru_cache(maxsize=1024)
def _owners(client_id: str, peer: str) -> tuple[Owner, ...]:
    return ("client", client_id), ("connection", peer), ("address", network_of_peer(peer))


@lru_cache(maxsize=64)
def _namespace_owner(namespace: str) -> tuple[Owner, ...]:
    return (("namespace", namespace),)
