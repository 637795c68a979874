"""The open dimensions of a model's inputs, and the numbers that they are bound to."""

from collections.abc import Mapping, Sequence

import onnx

from agent_sdk.errors import InputError, OpenShapeError, UnplannableError

Shapes = Mapping[str, Sequence[int]]
"""Input name to its shape."""

NAMELESS = frozenset({"", "?"})
"""What exporters write for dimensions that have nothing to do with each other."""
MAX_DIMENSION = 2**31 - 1


def free_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives: those without a value of their own."""
    constants = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in constants]


def symbol_of(dim: onnx.TensorShapeProto.Dimension) -> str | None:
    """None where a dimension is fixed, else the symbol that stands for it, which may be empty.

    Exporters write 0 and -1 too where anything may come.
    """
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return None
    return "" if dim.dim_param in NAMELESS else str(dim.dim_param)


def bind(graph: onnx.GraphProto, shapes: Shapes | None = None) -> None:
    """Give every input a static shape, in place.

    A symbol that one shape binds holds wherever it recurs, also in what the model says of other tensors. The first
    dimensions, where they are left open, are 1: the batch.
    Raises InputError for shapes that contradict the model or each other, OpenShapeError naming a dimension that is
    still open, UnplannableError for an input that is no tensor.
    """
    inputs = free_inputs(graph)
    for name in (shapes or {}).keys() - {info.name for info in inputs}:
        raise InputError(f"there is no input '{name}'; inputs: {', '.join(i.name for i in inputs)}")
    for info in inputs:
        if not info.type.HasField("tensor_type"):
            raise UnplannableError(f"the model input '{info.name}' is no tensor; only tensors can be planned")
        if info.name not in (shapes or {}) and not info.type.tensor_type.HasField("shape"):
            raise OpenShapeError(f"the model input '{info.name}' has no shape: give it one ({_cure(info)})")
    bound = _given(inputs, shapes or {})
    batch = {symbol_of(info.type.tensor_type.shape.dim[0]) for info in inputs if info.type.tensor_type.shape.dim}
    bound = {symbol: 1 for symbol in batch if symbol} | bound
    for info in inputs:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            symbol = symbol_of(dim)
            if symbol is None or info.name in (shapes or {}):
                continue
            if symbol in bound:
                dim.dim_value = bound[symbol]
            elif axis == 0:
                dim.dim_value = 1
            else:
                shown = symbol or (str(dim.dim_value) if dim.HasField("dim_value") else "?")
                raise OpenShapeError(
                    f"the model input '{info.name}' has a dynamic shape: dimension {axis} is '{shown}'; give the "
                    f"input's shape ({_cure(info)})"
                )
    for info in (*graph.value_info, *graph.output):
        for dim in info.type.tensor_type.shape.dim:
            symbol = symbol_of(dim)
            if symbol and symbol in bound:
                dim.dim_value = bound[symbol]


def _given(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """Write the given shapes into their inputs, and return what they bind each symbol to."""
    bound: dict[str, int] = {}
    by: dict[str, str] = {}
    for info in inputs:
        if info.name not in shapes:
            continue
        shape, kind = tuple(shapes[info.name]), info.type.tensor_type
        if not all(isinstance(size, int) and 0 <= size <= MAX_DIMENSION for size in shape):
            raise InputError(f"the shape {list(shape)} of input '{info.name}' is none: sizes are whole numbers from 0")
        dims = list(kind.shape.dim) if kind.HasField("shape") else [onnx.TensorShapeProto.Dimension()] * len(shape)
        if len(dims) != len(shape):
            raise InputError(
                f"input '{info.name}' has {len(dims)} dimensions; the shape {list(shape)} has {len(shape)}"
            )
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            symbol = symbol_of(dim)
            if symbol is None and dim.dim_value != size:
                raise InputError(f"dimension {axis} of input '{info.name}' is {dim.dim_value}, not {size}")
            if symbol and bound.setdefault(symbol, size) != size:
                raise InputError(
                    f"'{symbol}' would be {size} in input '{info.name}' and {bound[symbol]} in '{by[symbol]}'"
                )
            if symbol:
                by.setdefault(symbol, info.name)
        kind.shape.CopyFrom(onnx.helper.make_tensor_type_proto(kind.elem_type, shape).tensor_type.shape)
    return bound


def _cure(info: onnx.ValueInfoProto) -> str:
    sizes = (str(dim.dim_value) if symbol_of(dim) is None else "…" for dim in info.type.tensor_type.shape.dim)
    return f"shapes={{'{info.name}': ({', '.join(sizes)})}}, or --shape {info.name}=…"
