"""The native passes over receives and acks, with this broker's forms and keys of fields.

Their twins are `deliver.py`, `handles.py` and `wire.plain_ack`: what a pass does not take, its twin
does.
"""

from __future__ import annotations

from strata_broker.base import wire
from strata_edge.passes import (
    AckPass,
    DeliveryFragments,
    DeliveryPass,
    NativePasses,
    ReceiptForm,
    ReceiptPass,
)
from strata_mq.requests import SIGNED_FORM
from strata_mq.traces import DELIVERY_KEYS


def new_delivery_pass(passes: NativePasses | None) -> DeliveryPass | None:
    """Return a pass over leased messages, if there are passes."""
    if passes is None:
        return None
    fragments = DeliveryFragments(
        *DELIVERY_KEYS, wire.SYSTEM_PROPERTIES_KEY, wire.RECEIVED_MESSAGE_KEY
    )
    return passes.DeliveryPass(ReceiptForm(*SIGNED_FORM), fragments)


def new_receipt_pass(passes: NativePasses | None) -> ReceiptPass | None:
    """Return a pass over receipt handles, if there are passes."""
    return None if passes is None else passes.ReceiptPass(ReceiptForm(*SIGNED_FORM))


def new_ack_pass(passes: NativePasses | None) -> AckPass | None:
    """Return a pass over AckMessageRequests, if there are passes."""
    return None if passes is None else passes.AckPass(wire.OK_ANSWER, wire.OK_ENTRY)
