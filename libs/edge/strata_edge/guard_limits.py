"""Limits of the frames that one connection may send in addition to its calls."""

from __future__ import annotations

from dataclasses import dataclass

from strata_edge.pace import LeastRate

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """Limits of one connection; the keys of the section `[edge]` with the same names.

    A frame that is no request costs its connection time, so that the rates below hold. A
    connection may be in debt for `control_credit_ms`: it may ask so much at once.

    Attributes:
        large_request_bytes: a larger request waits for room.
        max_header_bytes: of one call, as they are on the wire.
        max_unfinished_requests: requests of several frames that are under way.
        max_resets_per_s: streams that the client may reset.
        max_control_frames_per_s: pings, settings, empty frames and small messages of a stream.
        max_header_bytes_per_s: of all calls.
        control_credit_ms: how much of these rates a connection may ask at once.
        max_control_pause_ms: a connection in debt is not read for so long at a time.
        control_grace_ms: a connection with a smaller debt does not pay for its address.
        control_connections_per_address: an address may ask so many times what a connection may.
        max_request_pause_ms: a connection whose large requests do not go on for so long, while
            others wait for their room, is ended.
        min_upload_bytes_per_s: in that time they have to go on at least so fast, or to the end.
    """

    large_request_bytes: int = 64 * KIB
    max_header_bytes: int = 64 * KIB
    max_unfinished_requests: int = 16_384
    max_resets_per_s: int = 100
    max_control_frames_per_s: int = 2_000
    max_header_bytes_per_s: int = 8 * MIB
    control_credit_ms: int = 10_000
    max_control_pause_ms: int = 10_000
    control_grace_ms: int = 500
    control_connections_per_address: int = 20
    max_request_pause_ms: int = 5_000
    min_upload_bytes_per_s: int = 256 * KIB

    @property
    def reset_cost_s(self) -> float:
        """Time that one reset costs."""
        return 1 / self.max_resets_per_s

    @property
    def control_cost_s(self) -> float:
        """Time that one frame costs which is neither a call nor a reset."""
        return 1 / self.max_control_frames_per_s

    @property
    def header_byte_cost_s(self) -> float:
        """Time that one byte of headers costs."""
        return 1 / self.max_header_bytes_per_s

    @property
    def least_upload(self) -> LeastRate:
        """Return the least rate of a client that sends large requests while others wait."""
        return LeastRate(self.max_request_pause_ms / 1_000, self.min_upload_bytes_per_s)
