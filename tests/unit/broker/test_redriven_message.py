"""Stored form of a redriven message."""

from __future__ import annotations

import google_crc32c

from apache.rocketmq.v2 import definition_pb2
from strata.broker.v1 import stored_pb2
from strata_broker.operators import redrive
from strata_mq.layout.hashing import key_hash, pack_message_id, text_hash
from strata_testing.broker.client import id_of, message

OLD_ID, NEW_ID = id_of(1), id_of(2)


def redriven(letter: definition_pb2.Message) -> definition_pb2.Message:
    """Redrive a letter; return what consumers would be given."""
    outgoing = redrive.redriven_message(
        letter, "%DLQ%g", NEW_ID, "strata-redrive@b", google_crc32c.value
    )
    assert outgoing.checksum == google_crc32c.value(outgoing.stored)
    assert outgoing.message_id == pack_message_id(NEW_ID)
    sender = stored_pb2.StoredMessage.FromString(outgoing.stored).system_properties
    assert sender.sender_client_id == "strata-redrive@b"
    return definition_pb2.Message.FromString(outgoing.stored)


def test_all_but_the_id_and_the_history_stays() -> None:
    """Body, tag, keys, message group and the user's properties are those of the letter."""
    letter = message(
        "orders", 1, body=b"x", tag="t", keys=["k"], message_group="mg", trace_context="tc"
    )
    letter.user_properties["size"] = "xl"
    again = redriven(letter)
    assert again.system_properties.message_id == NEW_ID
    assert dict(again.user_properties) == {
        "size": "xl",
        redrive.ID_PROPERTY: OLD_ID,
        redrive.FROM_PROPERTY: "%DLQ%g",
        redrive.COUNT_PROPERTY: "1",
    }
    same = definition_pb2.SystemProperties()
    same.CopyFrom(again.system_properties)
    same.message_id = OLD_ID
    same.DiscardUnknownFields()
    assert (same, again.body, again.topic) == (letter.system_properties, b"x", letter.topic)


def test_indexes_are_those_of_the_letter() -> None:
    """Tag, message group and keys find it as before."""
    letter = message("orders", 1, tag="t", keys=["k"], message_group="mg")
    outgoing = redrive.redriven_message(letter, "%DLQ%g", NEW_ID, "c", google_crc32c.value)
    assert outgoing.tag_hash == text_hash("t")
    assert outgoing.group_hash == text_hash("mg")
    assert list(outgoing.key_hashes) == [key_hash("k")]
    assert letter.system_properties.message_id == OLD_ID, "the letter itself is not changed"


def test_redrives_are_counted() -> None:
    """The count goes up each time; what is no number counts as none."""
    letter = message("orders", 1)
    for before, after in (("1", "2"), ("41", "42"), ("many", "1"), ("-3", "1")):
        letter.user_properties[redrive.COUNT_PROPERTY] = before
        assert redriven(letter).user_properties[redrive.COUNT_PROPERTY] == after
