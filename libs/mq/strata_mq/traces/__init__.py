"""Traces of messages: the outcome of each delivery."""

from strata_mq.traces.delivery import (
    DELIVERY_KEYS,
    STORE_FRAGMENTS,
    DeadLetterOrigin,
    delivery_fragment,
    sender_fragment,
    store_fragment,
    user_property_fragment,
)
from strata_mq.traces.traces import (
    ClientName,
    TraceEvent,
    block_of,
    decode_client_names,
    encode_client_names,
    trace_events,
    trace_values,
)

__all__ = [
    "DELIVERY_KEYS",
    "STORE_FRAGMENTS",
    "ClientName",
    "DeadLetterOrigin",
    "TraceEvent",
    "block_of",
    "decode_client_names",
    "delivery_fragment",
    "encode_client_names",
    "sender_fragment",
    "store_fragment",
    "trace_events",
    "trace_values",
    "user_property_fragment",
]
