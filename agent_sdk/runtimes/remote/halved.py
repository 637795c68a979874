"""Float32 that crosses the way to a host as float16: half of the bytes, where the host's owner allows it and it pays.

What is sent says so itself: it takes such tensors in as float16 and casts them, as any server does that runs ONNX. A
value beyond float16 is never made infinite in silence: the run fails, and whoever is next answers.
"""

from collections.abc import Collection
from typing import Final

import numpy as np
import onnx

from agent_sdk import native
from agent_sdk.errors import WrongOutput
from agent_sdk.machine.timing import timed
from hope_schema import TensorType

MOST: Final = float(np.finfo(np.float16).max)
_TIMED: Final = np.linspace(-1, 1, 2**16, dtype=np.float32)
_TIMES: Final = 3


def crossing(kind: TensorType) -> TensorType:
    """The type in which a float32 tensor crosses."""
    return TensorType(shape=kind.shape, dtype="float16")


def crossing_name(name: str) -> str:
    """What a tensor is called in the form in which it crosses."""
    return f"{name}:float16"


def cast_at_border(piece: onnx.ModelProto, names: Collection[str]) -> None:
    """Let a piece take and give tensors of its border in float16, under their ``crossing_name``, and cast them."""
    half, whole = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    before: list[onnx.NodeProto] = []
    behind: list[onnx.NodeProto] = []
    for ports, casts, to in ((piece.graph.input, before, whole), (piece.graph.output, behind, half)):
        for port in ports:
            if port.name in names:
                name, port.name = port.name, crossing_name(port.name)
                port.type.tensor_type.elem_type = half
                ends = (port.name, name) if to == whole else (name, port.name)
                casts.append(onnx.helper.make_node("Cast", [ends[0]], [ends[1]], to=to))
    nodes = [*before, *piece.graph.node, *behind]
    del piece.graph.node[:]
    piece.graph.node.extend(nodes)


def narrow(into: np.ndarray, values: np.ndarray, name: str) -> None:
    """Round values to float16. Raises WrongOutput for one that it does not hold."""
    library, row = native.library(), np.ascontiguousarray(values)
    try:
        if library is None:
            with np.errstate(over="raise"):
                np.copyto(into, values, casting="same_kind")
        elif not library.hope_narrow(row.ctypes.data, into.ctypes.data, into.size):
            raise FloatingPointError
    except FloatingPointError:
        raise WrongOutput(f"'{name}' has values beyond {MOST:.0f}, which cannot cross as float16") from None


def widen(into: np.ndarray, values: np.ndarray, name: str) -> None:
    """Take what came as float16. Raises WrongOutput where something in it may have been beyond that."""
    library = native.library()
    if library is None or not into.flags.c_contiguous:
        finite = not np.isinf(values).any()
        np.copyto(into, values)
    else:
        finite = library.hope_widen(values.ctypes.data, into.ctypes.data, into.size)
    if not finite:
        raise WrongOutput(f"'{name}' has values beyond {MOST:.0f}, which cannot cross as float16")


def change_us_per_byte() -> float:
    """Microseconds per byte of float32 that turning it into float16 and back takes on this machine."""
    half, whole = np.empty(_TIMED.shape, np.float16), np.empty_like(_TIMED)

    def there_and_back() -> None:
        narrow(half, _TIMED, "")
        widen(whole, half, "")

    return min(timed(there_and_back)[0] for _ in range(_TIMES)) / _TIMED.nbytes
