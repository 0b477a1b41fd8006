"""Bytes of the remoting protocol of RocketMQ 4 and 5. Pure: values in, values out.

Reading order: `codes` and `admin_codes` (numbers of requests and answers), `command` (a request or
an answer), `headers` and `frames` (its bytes), `properties` and `batch_body` (messages on their way
in), `stored_messages` (messages on their way out), `offset_ids` (ids that name an address),
`recall_handles` (of delayed messages), `pop_infos` and `batch_acks` (of popped messages).
"""

from strata_remoting.admin_codes import AdminCode
from strata_remoting.batch_acks import BatchAck, read_batch_ack
from strata_remoting.batch_body import BatchedMessage, decode_batch, encode_batch
from strata_remoting.codes import Language, RequestCode, ResponseCode
from strata_remoting.command import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    RemotingCommand,
    RemotingError,
)
from strata_remoting.frames import FrameLimits, ReadFrame, RemotingFrameReader, encode_frame
from strata_remoting.headers import Serialization
from strata_remoting.offset_ids import (
    OffsetPlace,
    Store,
    offset_message_id,
    physical_offset,
    place_at,
)
from strata_remoting.pop_infos import (
    PopInfo,
    PoppedPlace,
    encode_pop_info,
    handle_of_pop,
    message_offsets_text,
    start_offsets_text,
)
from strata_remoting.properties import decode_properties, encode_properties
from strata_remoting.recall_handles import (
    RecallHandle,
    decode_recall_handle,
    encode_recall_handle,
)
from strata_remoting.stored_messages import PulledMessage, decode_messages, encode_message

__all__ = [
    "ACCESS_KEY",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "AdminCode",
    "BatchAck",
    "BatchedMessage",
    "FrameLimits",
    "Language",
    "OffsetPlace",
    "PopInfo",
    "PoppedPlace",
    "PulledMessage",
    "ReadFrame",
    "RecallHandle",
    "RemotingCommand",
    "RemotingError",
    "RemotingFrameReader",
    "RequestCode",
    "ResponseCode",
    "Serialization",
    "Store",
    "decode_batch",
    "decode_messages",
    "decode_properties",
    "decode_recall_handle",
    "encode_batch",
    "encode_frame",
    "encode_message",
    "encode_pop_info",
    "encode_properties",
    "encode_recall_handle",
    "handle_of_pop",
    "message_offsets_text",
    "offset_message_id",
    "physical_offset",
    "place_at",
    "read_batch_ack",
    "start_offsets_text",
]
