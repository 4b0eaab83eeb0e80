"""Binary form of the log's messages: one message per frame, big-endian.

A frame is: version (1 byte), kind (1 byte), the kind's fixed fields, then whatever has a variable
length. The link adds and checks the length of the frame, and limits it; `encode` returns the
pieces of a frame so that the bytes of blocks are handed to the socket without being copied.

`decode` accepts exactly what `encode` makes, checks every length before it allocates, and checks
the checksum of each block. Anything else gives `RemoteProtocolError` and nothing but that.

It holds no state.
"""

import json
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import assert_never

from pgherd_sidecar.core.consensus.model.blocks import (
    COUNT_MASK,
    KIND_SHIFT,
    Block,
    LogBase,
    TermStart,
)
from pgherd_sidecar.core.consensus.model.errors import RemoteProtocolError
from pgherd_sidecar.core.consensus.model.messages import (
    Ack,
    Append,
    BarrierReply,
    BarrierRequest,
    Change,
    Commit,
    FetchReply,
    FetchRequest,
    Mend,
    Mended,
    Message,
    Newer,
    PollReply,
    PollRequest,
    Reject,
    Submit,
    Trimmed,
    Vote,
    VoteRequest,
)
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership
from pgherd_sidecar.core.consensus.model.split import SplitMessage, name_and_disk

VERSION = 3

_HEAD = Struct(">BB")
_VOTE_REQUEST = Struct(">BBQB")
#: ..., then sizes: of the history in pairs, of the membership and the disk in bytes
_VOTE = Struct(">BBQBQIII")
_TERM = Struct(">BBQ")
_FETCH_REQUEST = Struct(">BBQQ")
_FETCH_REPLY = Struct(">BBQQI")
_MENDED = Struct(">BBQI")
_APPEND = Struct(">BBQQQQQBI")
_ACK = Struct(">BBQQ")
_REJECT = Struct(">BBQQQI")
_SUBMIT = Struct(">BBI")
_TRIMMED = Struct(">BBQQQ")
#: ..., then sizes: of the membership and the disk in bytes
_BARRIER_REPLY = Struct(">BBQQQII")
_HISTORY_ENTRY = Struct(">QQ")
#: term, first, kind and count, crc, size of the data
_BLOCK = Struct(">QQIII")

(
    _KIND_VOTE_REQUEST,
    _KIND_VOTE,
    _KIND_NEWER,
    _KIND_FETCH_REQUEST,
    _KIND_FETCH_REPLY,
    _KIND_APPEND,
    _KIND_ACK,
    _KIND_REJECT,
    _KIND_COMMIT,
    _KIND_SUBMIT,
    _KIND_TRIMMED,
    _KIND_CHANGE,
    _KIND_MEND,
    _KIND_MENDED,
    _KIND_SPLIT,
    _KIND_BARRIER_REQUEST,
    _KIND_BARRIER_REPLY,
    _KIND_QUESTION,
    _KIND_ANSWER,
) = range(1, 20)


def encode(message: Message) -> list[bytes]:  # noqa: PLR0911, PLR0912 - one return a kind
    """Return the pieces of the message's frame, to be sent one after the other."""
    # The frequent ones first, and not taken apart by the pattern, which takes longer.
    match message:
        case Append():
            return _encode_append(message)
        case Ack():
            return [_ACK.pack(VERSION, _KIND_ACK, message.term, message.position)]
        case Submit():
            return [_SUBMIT.pack(VERSION, _KIND_SUBMIT, message.count), message.data]
        case Commit(term, bound):
            return [_ACK.pack(VERSION, _KIND_COMMIT, term, bound)]
        case Reject(term, position, last, history):
            head = _REJECT.pack(VERSION, _KIND_REJECT, term, position, last, len(history))
            return [head, _pack_history(history)]
        case VoteRequest(term, pre):
            return [_VOTE_REQUEST.pack(VERSION, _KIND_VOTE_REQUEST, term, pre)]
        case Vote(term, pre, last, history, membership, disk):
            who, where = membership.encode(), disk.encode()
            sizes = len(history), len(who), len(where)
            head = _VOTE.pack(VERSION, _KIND_VOTE, term, pre, last, *sizes)
            return [head, _pack_history(history), who, where]
        case Newer(term):
            return [_TERM.pack(VERSION, _KIND_NEWER, term)]
        case FetchRequest(term, first):
            return [_FETCH_REQUEST.pack(VERSION, _KIND_FETCH_REQUEST, term, first)]
        case FetchReply(term, first, blocks):
            head = _FETCH_REPLY.pack(VERSION, _KIND_FETCH_REPLY, term, first, len(blocks))
            return _with_blocks(head, blocks)
        case Trimmed(term, base):
            head = _TRIMMED.pack(VERSION, _KIND_TRIMMED, term, base.position, base.term)
            return [head, base.membership.encode()]
        case Mend(term, first):
            return [_FETCH_REQUEST.pack(VERSION, _KIND_MEND, term, first)]
        case Mended(first, blocks):
            return _with_blocks(_MENDED.pack(VERSION, _KIND_MENDED, first, len(blocks)), blocks)
        case Change():
            return [_HEAD.pack(VERSION, _KIND_CHANGE), _pack_change(message)]
        case SplitMessage():
            return [_HEAD.pack(VERSION, _KIND_SPLIT), message.encode()]
        case BarrierRequest(number):
            return [_TERM.pack(VERSION, _KIND_BARRIER_REQUEST, number)]
        case BarrierReply(number, last_term, last, membership, disk):
            who, where = membership.encode(), disk.encode()
            ends = number, last_term, last
            head = _BARRIER_REPLY.pack(VERSION, _KIND_BARRIER_REPLY, *ends, len(who), len(where))
            return [head, who, where]
        case PollRequest(number, data):
            return [_TERM.pack(VERSION, _KIND_QUESTION, number), data]
        case PollReply(number, data):
            return [_TERM.pack(VERSION, _KIND_ANSWER, number), data]
        case _:
            assert_never(message)


def decode(frame: bytes) -> Message:
    """Return the message in a frame.

    Raises:
        RemoteProtocolError: the frame is not a message of this version.
    """
    try:
        version, kind = _HEAD.unpack_from(frame)
        if version != VERSION:
            raise RemoteProtocolError(f"version {version} of the log protocol, not {VERSION}")
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise RemoteProtocolError(f"unknown kind of message {kind}")
        return decoder(frame)
    except StructError as error:
        raise RemoteProtocolError("message cut short") from error


def _encode_append(append: Append) -> list[bytes]:
    head = _APPEND.pack(
        VERSION,
        _KIND_APPEND,
        append.term,
        append.prev_position,
        append.prev_term,
        append.commit_bound,
        append.restart_position,
        append.lonely,
        len(append.blocks),
    )
    return _with_blocks(head, append.blocks)


def _with_blocks(head: bytes, blocks: tuple[Block, ...]) -> list[bytes]:
    pieces = [head]
    for block in blocks:
        size = len(block.data)
        identity = block.term, block.first, block.kind_and_count
        pieces.append(_BLOCK.pack(*identity, block.crc, size))
        pieces.append(block.data)
    return pieces


def _pack_history(history: tuple[TermStart, ...]) -> bytes:
    return b"".join([_HISTORY_ENTRY.pack(*entry) for entry in history])


def _pack_change(change: Change) -> bytes:
    join = None if change.join is None else change.join.row
    return json.dumps([join, change.leave], separators=(",", ":")).encode()


def _check_end(frame: bytes, end: int) -> None:
    if len(frame) != end:
        raise RemoteProtocolError(f"message of {len(frame)} bytes instead of {end}")


def _flag(byte: int) -> bool:
    if byte > 1:
        raise RemoteProtocolError(f"{byte} is not a flag")
    return byte == 1


def _unpack_history(frame: bytes, offset: int, count: int) -> tuple[TermStart, ...]:
    end = offset + count * _HISTORY_ENTRY.size
    if end > len(frame):
        raise RemoteProtocolError("term history cut short")
    history: list[TermStart] = []
    after = (0, 0)
    for entry in _HISTORY_ENTRY.iter_unpack(memoryview(frame)[offset:end]):
        term, start = entry
        if term <= after[0] or start <= after[1]:
            raise RemoteProtocolError("term history out of order")
        after = (term, start)
        history.append(after)
    return tuple(history)


def _unpack_blocks(frame: bytes, offset: int, count: int) -> tuple[Block, ...]:
    blocks = []
    for _ in range(count):
        term, first, kind_and_count, crc, size = _BLOCK.unpack_from(frame, offset)
        start = offset + _BLOCK.size
        offset = start + size
        if offset > len(frame):
            raise RemoteProtocolError("block cut short")
        entries, kind = kind_and_count & COUNT_MASK, kind_and_count >> KIND_SHIFT
        block = Block(term, first, entries, frame[start:offset], crc, kind)
        if not block.intact():
            raise RemoteProtocolError(f"checksum of block {term}/{first} is wrong")
        blocks.append(block)
    _check_end(frame, offset)
    return tuple(blocks)


def _decode_append(frame: bytes) -> Append:
    _, _, term, position, prev_term, bound, restart, lonely, count = _APPEND.unpack_from(frame)
    blocks = _unpack_blocks(frame, _APPEND.size, count)
    return Append(term, position, prev_term, bound, restart, blocks, _flag(lonely))


def _decode_ack(frame: bytes) -> Ack:
    _check_end(frame, _ACK.size)
    _, _, term, position = _ACK.unpack(frame)
    return Ack(term, position)


def _decode_submit(frame: bytes) -> Submit:
    _, _, count = _SUBMIT.unpack_from(frame)
    return Submit(count, frame[_SUBMIT.size :])


def _decode_commit(frame: bytes) -> Commit:
    _check_end(frame, _ACK.size)
    _, _, term, bound = _ACK.unpack(frame)
    return Commit(term, bound)


def _decode_reject(frame: bytes) -> Reject:
    _, _, term, position, last, count = _REJECT.unpack_from(frame)
    _check_end(frame, _REJECT.size + count * _HISTORY_ENTRY.size)
    return Reject(term, position, last, _unpack_history(frame, _REJECT.size, count))


def _decode_vote_request(frame: bytes) -> VoteRequest:
    _check_end(frame, _VOTE_REQUEST.size)
    _, _, term, pre = _VOTE_REQUEST.unpack(frame)
    return VoteRequest(term, _flag(pre))


def _decode_vote(frame: bytes) -> Vote:
    _, _, term, pre, last, count, who_size, disk_size = _VOTE.unpack_from(frame)
    who = _VOTE.size + count * _HISTORY_ENTRY.size
    disk = who + who_size
    _check_end(frame, disk + disk_size)
    return Vote(
        term,
        _flag(pre),
        last,
        _unpack_history(frame, _VOTE.size, count),
        Membership.decode(frame[who:disk]),
        _text(frame[disk:]),
    )


def _decode_change(frame: bytes) -> Change:
    try:
        row, leave = json.loads(frame[_HEAD.size :])
        change = Change(None if row is None else Member.of(row), tuple(map(name_and_disk, leave)))
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError("not a change of the membership") from error
    if _pack_change(change) != frame[_HEAD.size :]:
        raise RemoteProtocolError("not a change as members encode it")
    return change


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("not a text") from error


def _decode_trimmed(frame: bytes) -> Trimmed:
    _, _, term, position, base_term = _TRIMMED.unpack_from(frame)
    membership = Membership.decode(frame[_TRIMMED.size :])
    return Trimmed(term, LogBase(position, base_term, membership))


def _decode_newer(frame: bytes) -> Newer:
    _check_end(frame, _TERM.size)
    return Newer(_TERM.unpack(frame)[2])


def _decode_fetch_request(frame: bytes) -> FetchRequest:
    _check_end(frame, _FETCH_REQUEST.size)
    _, _, term, first = _FETCH_REQUEST.unpack(frame)
    return FetchRequest(term, first)


def _decode_fetch_reply(frame: bytes) -> FetchReply:
    _, _, term, first, count = _FETCH_REPLY.unpack_from(frame)
    return FetchReply(term, first, _unpack_blocks(frame, _FETCH_REPLY.size, count))


def _decode_mend(frame: bytes) -> Mend:
    _check_end(frame, _FETCH_REQUEST.size)
    _, _, term, first = _FETCH_REQUEST.unpack(frame)
    return Mend(term, first)


def _decode_mended(frame: bytes) -> Mended:
    _, _, first, count = _MENDED.unpack_from(frame)
    return Mended(first, _unpack_blocks(frame, _MENDED.size, count))


def _decode_barrier_request(frame: bytes) -> BarrierRequest:
    _check_end(frame, _TERM.size)
    return BarrierRequest(_TERM.unpack(frame)[2])


def _decode_barrier_reply(frame: bytes) -> BarrierReply:
    _, _, number, last_term, last, who_size, disk_size = _BARRIER_REPLY.unpack_from(frame)
    who = _BARRIER_REPLY.size
    disk = who + who_size
    _check_end(frame, disk + disk_size)
    membership = Membership.decode(frame[who:disk])
    return BarrierReply(number, last_term, last, membership, _text(frame[disk:]))


def _decode_question(frame: bytes) -> PollRequest:
    return PollRequest(_TERM.unpack_from(frame)[2], frame[_TERM.size :])


def _decode_answer(frame: bytes) -> PollReply:
    return PollReply(_TERM.unpack_from(frame)[2], frame[_TERM.size :])


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    _KIND_VOTE_REQUEST: _decode_vote_request,
    _KIND_VOTE: _decode_vote,
    _KIND_NEWER: _decode_newer,
    _KIND_FETCH_REQUEST: _decode_fetch_request,
    _KIND_FETCH_REPLY: _decode_fetch_reply,
    _KIND_APPEND: _decode_append,
    _KIND_ACK: _decode_ack,
    _KIND_REJECT: _decode_reject,
    _KIND_COMMIT: _decode_commit,
    _KIND_SUBMIT: _decode_submit,
    _KIND_TRIMMED: _decode_trimmed,
    _KIND_CHANGE: _decode_change,
    _KIND_MEND: _decode_mend,
    _KIND_MENDED: _decode_mended,
    _KIND_BARRIER_REQUEST: _decode_barrier_request,
    _KIND_BARRIER_REPLY: _decode_barrier_reply,
    _KIND_QUESTION: _decode_question,
    _KIND_ANSWER: _decode_answer,
    _KIND_SPLIT: lambda frame: SplitMessage.decode(frame[_HEAD.size :]),
}
