"""Element types as the Open Inference Protocol names them, and tensors as bytes."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from agent_sdk.errors import RefusedError
from agent_sdk.model.ports import HELD
from agent_sdk.protocol.datatypes import DATATYPES

BYTES: Final = "BYTES"
"""Texts: each as its length in four bytes, then itself in UTF-8."""
TEXTS: Final = "OUS"
"""Kinds of NumPy's types that hold texts."""
NUMPY: Final[Mapping[str, np.dtype[Any]]] = {name: np.dtype(dtype) for dtype, name in DATATYPES.items()}
"""Types whose elements NumPy has."""
NAMES: Final = {dtype: name for name, dtype in NUMPY.items()}
OF_PORT: Final = {port: NAMES[dtype] for port, dtype in HELD.items() if dtype in NAMES} | {"tensor(string)": BYTES}
"""By the names that ONNX Runtime has for types of inputs and outputs."""
_VALUES: Final[Mapping[str, set[type]]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "O": {str, bytes},
}
"""Of which classes values are that are written out, by the kind of their type."""
_LENGTH: Final = struct.Struct("<I")


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview | bytes) -> np.ndarray:
    """A tensor over the bytes that arrived, which are not copied unless they stand at an odd address.

    Raises RefusedError where they are more or fewer than its type and shape say.
    """
    if datatype == BYTES:
        return _texts(name, shape, bytes(data))
    dtype, count = NUMPY[datatype], math.prod(shape)
    if len(data) != count * dtype.itemsize:
        wanted = f"{datatype}{list(shape)} takes {count * dtype.itemsize}"
        raise RefusedError(400, f"input '{name}' has {len(data)} bytes, but {wanted}")
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise RefusedError(400, f"input '{name}' is BOOL, but holds bytes other than 0 and 1")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def to_bytes(array: np.ndarray) -> memoryview:
    if array.dtype.kind in TEXTS:
        texts = [text.encode() if isinstance(text, str) else bytes(text) for text in array.ravel().tolist()]
        return memoryview(b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text)))
    if array.size == 0:
        return memoryview(b"")
    return np.ascontiguousarray(array).data.cast("B")


def from_values(name: str, datatype: str, shape: Sequence[int], values: Any) -> np.ndarray:
    """A tensor of values that were written out, nested or in a row.

    Raises RefusedError where they are not of this type, or more or fewer than the shape says.
    """
    try:
        found = np.array(values, object).ravel().tolist()
        if len(found) != math.prod(shape):
            takes = f"its shape {list(shape)} takes {math.prod(shape)}"
            raise RefusedError(400, f"input '{name}' has {len(found)} values, but {takes}")
        kind = "O" if datatype == BYTES else NUMPY[datatype].kind
        if not set(map(type, found)) <= _VALUES[kind]:
            raise RefusedError(400, f"input '{name}' holds values that are not of type {datatype}")
        if kind == "O":
            texts = [value.decode() if isinstance(value, bytes) else value for value in found]
            return np.array(texts, object).reshape(shape)
        with np.errstate(over="ignore"):  # a number too large for its type is infinite, as in the networks
            return np.array(found, NUMPY[datatype]).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise RefusedError(400, f"input '{name}' holds values of no tensor of {datatype}: {error}") from None


def _texts(name: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    texts: list[str] = []
    at, count = 0, math.prod(shape)
    while at < len(data) and len(texts) < count:
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else len(data)
        if (at := start + size) > len(data):
            break
        try:
            texts.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            raise RefusedError(400, f"input '{name}' holds text that is not UTF-8: {error}") from None
    if at != len(data) or len(texts) != count:
        raise RefusedError(400, f"input '{name}' does not hold {count} texts, each behind its length in four bytes")
    return np.array(texts, object).reshape(shape)
