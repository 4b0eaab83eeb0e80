"""The wire form of messages: what goes in comes out, and nothing else gets in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_strategies import messages
from pgherd_sidecar.core.consensus import Block, Message, RemoteProtocolError
from pgherd_sidecar.core.consensus.model.codec import VERSION, decode, encode
from pgherd_sidecar.core.consensus.model.messages import Append, PollReply, PollRequest, Submit


@given(messages)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(b"".join(encode(message))) == message


@given(messages)
def test_a_frame_cut_short_or_with_more_behind_it_is_refused(message: Message) -> None:
    frame = b"".join(encode(message))
    if isinstance(
        message, Submit | PollRequest | PollReply
    ):  # its data is whatever the frame holds
        frame = frame[: len(frame) - len(message.data)]
    else:
        with pytest.raises(RemoteProtocolError):
            decode(frame + b"\0")
    for size in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode(frame[:size])


@given(st.binary(max_size=200))
def test_garbage_gives_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    _decode_or_refuse(garbage)
    _decode_or_refuse(bytes([VERSION]) + garbage)


@given(messages, st.data())
def test_a_flipped_bit_gives_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    frame = bytearray(b"".join(encode(message)))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    _decode_or_refuse(bytes(frame))


def test_a_flipped_bit_in_a_block_is_noticed() -> None:
    block = Block.make(3, 17, 2, b"two entries")
    head = len(encode(Append(3, 16, 2, 9, 5, ()))[0])
    frame = b"".join(encode(Append(3, 16, 2, 9, 5, (block,))))
    for bit in range(8 * head, 8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            decode(bytes(damaged))


def test_a_count_beyond_the_frame_is_refused_before_anything_is_allocated() -> None:
    frame = bytearray(encode(Append(3, 16, 2, 9, 5, ()))[0])
    frame[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteProtocolError):
        decode(bytes(frame))


def test_another_version_is_refused_by_name() -> None:
    frame = b"".join(encode(Append(3, 16, 2, 9, 5, ())))
    with pytest.raises(RemoteProtocolError, match="version 4"):
        decode(b"\x04" + frame[1:])


def test_the_data_of_blocks_is_not_copied_for_sending() -> None:
    block = Block.make(1, 1, 1, b"x" * 1000)
    assert any(piece is block.data for piece in encode(Append(1, 0, 0, 0, 0, (block,))))


def _decode_or_refuse(frame: bytes) -> None:
    try:
        message = decode(frame)
    except RemoteProtocolError:
        return
    assert b"".join(encode(message)) == frame
