"""Frames of the remoting protocol: bytes as documented, pieces of any size, hostile lengths."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_remoting import (
    FrameLimits,
    Language,
    RemotingCommand,
    RemotingError,
    RemotingFrameReader,
    RequestCode,
    ResponseCode,
    Serialization,
    encode_frame,
)

LIMITS = FrameLimits(max_frame_bytes=4_096, max_header_bytes=2_048, max_fields=8)

names = st.text(min_size=1, max_size=20)
commands = st.builds(
    RemotingCommand,
    code=st.integers(0, (1 << 15) - 1),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    fields=st.dictionaries(names, st.text(max_size=20), max_size=8),
    body=st.binary(max_size=100),
    flag=st.integers(0, 3),
    language=st.sampled_from(Language).map(int),
    version=st.integers(0, (1 << 15) - 1),
    remark=st.text(max_size=20),
)


def frames_of(data: bytes, limits: FrameLimits = LIMITS) -> list[RemotingCommand]:
    reader = RemotingFrameReader(limits)
    reader.feed(data)
    return [frame.command for frame in reader.frames()]


def test_a_json_frame_has_the_documented_bytes() -> None:
    """Length, then 0 and the header's length, then a JSON object, then the body."""
    command = RemotingCommand(105, 7, {"topic": "t"}, b"body", version=317)
    header = (
        b'{"code":105,"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",'
        b'"version":317,"extFields":{"topic":"t"}}'
    )
    expected = struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body"
    assert encode_frame(command, Serialization.JSON) == expected


def test_a_binary_frame_has_the_documented_bytes() -> None:
    """Code, language, version, opaque, flag, remark, fields: each length before its bytes."""
    command = RemotingCommand(
        10, 258, {"a": "bc"}, b"!", flag=2, language=9, version=411, remark="hi"
    )
    header = bytes.fromhex(
        "000a 09 019b 00000102 00000002 00000002 6869 00000009 0001 61 00000002 6263"
    )
    expected = bytes.fromhex("00000025 01000020") + header + b"!"
    assert encode_frame(command, Serialization.ROCKETMQ) == expected
    assert frames_of(expected) == [command]


@pytest.mark.parametrize("serialization", Serialization)
@given(command=commands)
def test_what_is_written_is_read(serialization: Serialization, command: RemotingCommand) -> None:
    """Both encodings give back every field."""
    assert frames_of(encode_frame(command, serialization)) == [command]


@given(sent=st.lists(commands, max_size=5), cuts=st.lists(st.integers(1, 50), min_size=1))
def test_pieces_of_any_size_are_joined(sent: list[RemotingCommand], cuts: list[int]) -> None:
    """A reader finds the same frames however the bytes arrive."""
    data = b"".join(
        encode_frame(command, Serialization(number % 2)) for number, command in enumerate(sent)
    )
    reader, found, at = RemotingFrameReader(LIMITS), [], 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        reader.feed(data[at : at + size])
        found += [frame.command for frame in reader.frames()]
        at += size
    assert found == sent
    assert reader.waiting_bytes == 0


@given(data=st.binary(max_size=200))
def test_any_bytes_give_frames_or_the_one_error(data: bytes) -> None:
    """Hostile bytes raise RemotingError and nothing else."""
    try:
        frames_of(data)
    except RemotingError:
        return


@given(header=st.binary(max_size=200), kind=st.sampled_from(Serialization))
def test_any_header_gives_a_command_or_the_one_error(header: bytes, kind: Serialization) -> None:
    """So do hostile headers in a right frame."""
    data = struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header
    try:
        frames_of(data)
    except RemotingError:
        return


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">I", 4_097), "a frame has 4097 bytes; 4096 are allowed"),
        (struct.pack(">I", 3), "a frame has 3 bytes"),
        (struct.pack(">II", 3_000, 2_049), "a header has 2049 bytes; 2048 are allowed"),
        (struct.pack(">II", 100, 97), "a header has 97 bytes, its frame has 100"),
        (struct.pack(">II", 100, 2 << 24), "the encoding of a header is 2"),
        (struct.pack(">II", 6, 2) + b"[]", "the header is no JSON object"),
        (struct.pack(">II", 7, 3) + b"{,}", "the header is no JSON"),
    ],
)
def test_limits_are_checked_before_bytes_are_kept(data: bytes, text: str) -> None:
    """A length beyond a limit ends the reading before the frame is there."""
    with pytest.raises(RemotingError, match=text):
        frames_of(data)


def test_fields_are_counted() -> None:
    """A header with more fields than allowed is refused, in both encodings."""
    command = RemotingCommand(10, fields={str(number): "" for number in range(9)})
    for serialization in Serialization:
        with pytest.raises(RemotingError, match="the header has 9 fields; 8 are allowed"):
            frames_of(encode_frame(command, serialization))


def test_a_lone_surrogate_in_json_is_refused() -> None:
    """A text that no answer could repeat in UTF-8 is an error of its sender."""
    for fields in (b'{"topic":"\\ud800"}', b'{"\\ud800":"topic"}', b'{"\xed\xa0\x80":""}'):
        header = b'{"code":10,"opaque":1,"extFields":%s}' % fields
        with pytest.raises(RemotingError, match="a field is no UTF-8"):
            frames_of(struct.pack(">II", 4 + len(header), len(header)) + header)


def test_an_answer_repeats_the_number_and_says_that_it_is_one() -> None:
    """Bit 0 of the flag marks an answer; a one-way request has bit 1."""
    request = RemotingCommand(RequestCode.HEART_BEAT, 42)
    answer = request.answered(ResponseCode.SYSTEM_BUSY, "busy", fields={"a": "1"})
    assert (answer.opaque, answer.flag, answer.remark) == (42, 1, "busy")
    assert answer.is_response
    assert request.oneway().is_oneway
    assert not request.is_oneway


def test_json_numbers_and_booleans_in_fields_are_texts() -> None:
    """Clients in other languages write numbers without quotes."""
    header = json.dumps(
        {"code": 10, "opaque": 1, "language": "GO", "extFields": {"a": 1, "b": True, "c": None}}
    ).encode()
    [command] = frames_of(struct.pack(">II", 4 + len(header), len(header)) + header)
    assert command.fields == {"a": "1", "b": "true"}
    assert command.language == Language.GO


@pytest.mark.parametrize("text", ["", "x", "1.5", "9" * 20, str(1 << 63), "--1", "\u0661"])
def test_a_field_that_is_no_number_is_refused(text: str) -> None:
    """Numbers have 64 bits with a sign, in ASCII digits."""
    with pytest.raises(RemotingError, match="the field offset"):
        RemotingCommand(10, fields={"offset": text}).number("offset")


def test_numbers_at_their_ends_are_read() -> None:
    """The least and the greatest number of 64 bits."""
    for value in (-(1 << 63), (1 << 63) - 1, -1, 0):
        assert RemotingCommand(10, fields={"n": str(value)}).number("n") == value
    with pytest.raises(RemotingError, match="the field n is missing"):
        RemotingCommand(10).number("n")
    assert RemotingCommand(10).number("n", 5) == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("1", True), ("false", False), ("0", False), ("", False)],
)
def test_java_and_cpp_write_booleans_in_their_own_ways(text: str, value: bool) -> None:
    """The client in C++ marks a batch with `1`: its messages were stored as one."""
    command = RemotingCommand(code=10, fields={"batch": text})
    assert command.truth("batch", default=not value) is value
    assert command.truth("absent", default=True)
