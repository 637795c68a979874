"""Whether a network's file may keep weights in other files: told without reading the weights that stand in it.

A file of protobuf says of each field how long it is, so that numbers of initialisers can be passed over; all else is
searched for what a tensor says whose data is elsewhere. A file that is none is searched as a whole.
"""

from collections.abc import Callable
from typing import Final

Reads = Callable[[int, int], bytes]
"""Bytes from an offset on: as many as there are, up to a length."""

LOCATION: Final = b"location"
"""What a tensor says whose data stands in another file."""
CHUNK_BYTES: Final = 8 * 2**20
"""How much is searched at once."""
WINDOW_BYTES: Final = 4096
"""How much is read to go from one field to the next; fewer numbers are not worth passing over."""
MOST_FIELDS: Final = 100_000
"""After so many fields the rest is searched as a whole: to walk on would take longer."""

NUMBERS: Final = ""
_WITHIN: Final = {
    "model": {7: "graph"},
    "graph": {5: "tensor"},
    "tensor": dict.fromkeys((4, 5, 7, 9, 10, 11), NUMBERS),
}
"""By message and number of a field, what stands in it, as ``onnx.proto`` numbers them."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a field is written."""


def may_refer(read: Reads, size: int) -> bool:
    """Whether a network's file of so many bytes says that weights are elsewhere; one that does not holds them all."""
    at = 0
    for begin, end in [*_numbers(read, size), (size, size)]:
        for start in range(at, begin, CHUNK_BYTES):
            if LOCATION in read(start, min(CHUNK_BYTES + len(LOCATION) - 1, begin - start)):
                return True
        at = end
    return False


def _numbers(read: Reads, size: int) -> list[tuple[int, int]]:
    """Where numbers of initialisers begin and end, as far as this is a network's file."""
    found: list[tuple[int, int]] = []
    at, within = 0, [("model", size)]
    window, origin = b"", 0

    def varint(at: int) -> tuple[int, int]:
        nonlocal window, origin
        if not origin <= at <= origin + len(window) - 10:
            window, origin = read(at, WINDOW_BYTES), at
        value = 0
        for shift in range(0, 70, 7):
            byte = window[at - origin]
            value, at = value | (byte & 127) << shift, at + 1
            if byte < 128:
                break
        return value, at

    try:
        for _ in range(MOST_FIELDS):
            while within and at >= within[-1][1]:
                within.pop()
            if not within:
                break
            message, end = within[-1]
            key, at = varint(at)
            number, written = key >> 3, key & 7
            if written == VARINT:
                _, at = varint(at)
            elif written == BYTES:
                length, at = varint(at)
                inner = _WITHIN[message].get(number)
                if at + length > end:
                    break
                if inner:
                    within.append((inner, at + length))
                    continue
                if inner == NUMBERS and length > WINDOW_BYTES:
                    found.append((at, at + length))
                at += length
            elif written in (FIXED64, FIXED32):
                at += 8 if written == FIXED64 else 4
            else:
                break
    except IndexError:  # it ends within a field
        pass
    return found
