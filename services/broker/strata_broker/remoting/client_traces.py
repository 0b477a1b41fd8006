"""Traces of messages that clients of this protocol make by themselves (`enableMsgTrace`).

They send them to `RMQ_SYS_TRACE_TOPIC`, if an operator has made this topic. A producer makes none
if the answer to its send says so, and a consumer only for messages that name a region.
"""

from __future__ import annotations

from strata_broker.metadata.metadata import MetadataView
from strata_mq.requests import TRACE_TOPIC

REGION = "MSG_REGION"
"""Property of a message that its consumer makes traces of."""

SWITCH = "TRACE_ON"
"""Field of the answer to a send: "false" if its producer is to make no trace."""

_REGION_NAME = "DefaultRegion"


def are_traces_wanted(view: MetadataView) -> bool:
    """Whether there is a topic for them."""
    return view.topic("", TRACE_TOPIC) is not None


def region_of(view: MetadataView) -> str:
    """Return the region that messages name; "": none, because nobody takes traces."""
    return _REGION_NAME if are_traces_wanted(view) else ""
