"""From a file's bytes to one self-contained ModelProto that we may change."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, inliner, numpy_helper

from agent_sdk.errors import ModelError, UnplannableError
from agent_sdk.model.nodes import DEFAULT_DOMAINS, nested, subgraphs
from hope_schema.base import MAX_OPS

MAX_NODES = 4 * MAX_OPS
"""Most nodes a file may hold before folding, those of local functions counted at every call."""
FunctionId = tuple[str, str, str]
"""Domain, name and overload: what a call and a local function are matched by."""
MAX_MODEL_BYTES = 2**31 - 1
"""Most bytes a model may have, weights in external files included: protobuf's own limit, so a cut piece always fits."""
LFS_POINTER = b"version https://git-lfs"
"""How the file begins that a clone without Git LFS leaves in a model's place."""
MAX_DENSE_BYTES = 2**30
"""Most bytes that sparse weights may have when they are written out: a file of a few bytes can ask for any size."""
NARROW_BITS = {
    number: 4 if name.endswith("4") or name == "FLOAT4E2M1" else 2
    for name, number in onnx.TensorProto.DataType.items()
    if name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
}
"""Element types of which several share a byte."""


def self_contained(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The same model with its local functions inlined and sparse weights written out; ``proto`` is used up.

    ``where`` is what to call it. Raises ModelError for what is not a whole ONNX model of at most MAX_MODEL_BYTES.
    """
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output or proto.graph.input):
        raise ModelError(f"{where} is not an ONNX model, or it was cut off: it holds no graph")
    if not proto.opset_import:
        raise ModelError(f"{where} is not a valid ONNX model, or it was cut off: it names no operator set")
    texts = (proto.graph.name, *(entry.domain for entry in proto.opset_import), *_names(proto.graph))
    if any(isinstance(text, bytes) for text in texts):  # protobuf hands out bytes for text that is not UTF-8
        raise ModelError(f"{where} is damaged: some of its names are not valid text")
    _make_dense(proto.graph, where)
    if proto.functions:
        _check_expansion(proto, where)
        try:
            proto = inliner.inline_local_functions(proto)
        except (ValueError, RuntimeError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{where}: its local functions cannot be inlined: {error}") from error
    return proto


def _check_expansion(proto: onnx.ModelProto, where: str) -> None:
    """Refuse local functions that would expand to too much: a few that call each other twice double with each."""
    bodies: defaultdict[FunctionId, list[onnx.NodeProto]] = defaultdict(list)
    for function in proto.functions:
        bodies[_key(function.domain, function.name, function.overload)] += nested(function.node)
    calls = {key: Counter(map(_called, body)) for key, body in bodies.items()}
    sizes = {key: sum(node.ByteSize() for node in body) for key, body in bodies.items()}
    pending = Counter(map(_called, nested(proto.graph.node)))
    nodes = size = 0
    # NOTE: every turn of a cycle counts at least one node, so this ends.
    while pending := Counter({key: times for key, times in pending.items() if key in bodies}):
        inner: Counter[FunctionId] = Counter()
        for key, times in pending.items():
            nodes += times * len(bodies[key])
            size += times * sizes[key]
            for called, count in calls[key].items():
                inner[called] += times * count
        if nodes > MAX_NODES or size > MAX_MODEL_BYTES:
            raise ModelError(
                f"{where}: its local functions expand to more than {MAX_NODES} nodes or {MAX_MODEL_BYTES} bytes"
            )
        pending = inner


def _called(node: onnx.NodeProto) -> FunctionId:
    return _key(node.domain, node.op_type, node.overload)


def _key(domain: str, name: str, overload: str) -> FunctionId:
    return "" if domain in DEFAULT_DOMAINS else domain, name, overload


def parse(data: bytes, where: str) -> onnx.ModelProto:
    """Parse a file's bytes. Raises ModelError."""
    if not data:
        raise ModelError(f"{where} is empty, not an ONNX model")
    if len(data) > MAX_MODEL_BYTES:
        raise ModelError(f"{where} has {len(data)} bytes; a model may have at most {MAX_MODEL_BYTES}")
    if data.startswith(LFS_POINTER):
        raise ModelError(
            f"{where} is a pointer of Git LFS, not the model: `git lfs pull` in its repository fetches that"
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError) as error:
        raise ModelError(f"{where} is not an ONNX model, or it was cut off") from error
    return proto


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that carries data, in subgraphs too: initialisers, then tensor-valued attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in subgraphs(node):
            yield from tensors(inner)


def _names(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for info in (*graph.input, *graph.output):
        yield info.name
        yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        for inner in subgraphs(node):
            yield from _names(inner)


class External(NamedTuple):
    """Where a tensor's data lies in another file: where in it, and how many bytes the tensor's shape needs."""

    tensor: onnx.TensorProto
    location: str
    offset: int
    size: int


def external(proto: onnx.ModelProto, where: str) -> Iterator[External]:
    """Yield the weights that lie in other files. Raises ModelError for declarations that contradict themselves."""
    try:
        for tensor in filter(external_data_helper.uses_external_data, tensors(proto.graph)):
            expected = expected_bytes(tensor)
            info = external_data_helper.ExternalDataInfo(tensor)
            offset = info.offset or 0
            if info.length is not None and info.length != expected:
                raise ModelError(f"{where}: weights '{tensor.name}' need {expected} bytes, {info.length} are declared")
            if offset < 0:
                raise ends_early(where, info.location, tensor)
            yield External(tensor, info.location, offset, expected)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{where}: its external weights cannot be read: {error}") from error


def ends_early(where: str, location: str, tensor: onnx.TensorProto) -> ModelError:
    """What is raised of a file that is shorter than the weights in it."""
    return ModelError(f"{where}: its external weights '{location}' end before '{tensor.name}' does")


def load_external(found: Iterable[External], read: Callable[[str, int, int], bytes], where: str) -> None:
    """Put weights that lie in other files inside; ``read`` gives a file's bytes by location, offset and length.

    Raises ModelError for files that are shorter than is declared, UnplannableError for more weights than are cut.
    """
    left = MAX_MODEL_BYTES
    for tensor, location, offset, size in found:
        left -= size
        if left < 0:
            raise UnplannableError(f"{where} has more than {MAX_MODEL_BYTES} bytes of weights, the most a plan cuts")
        try:
            data = read(location, offset, size)
        except (OSError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{where}: its external weights cannot be read: {error}") from error
        if len(data) != size:
            raise ends_early(where, location, tensor)
        tensor.raw_data = data
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def _make_dense(graph: onnx.GraphProto, where: str) -> None:
    """Write sparse weights out: what is fast on this hardware is dense."""
    left = MAX_DENSE_BYTES
    for sparse in graph.sparse_initializer:
        dense = onnx.TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
        left -= expected_bytes(dense)
        if left < 0:
            raise ModelError(f"{where}: its sparse weights are more than {MAX_DENSE_BYTES} bytes when written out")
        try:
            values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
            array = np.zeros(tuple(sparse.dims), values.dtype)
            array[tuple(indices.T) if indices.ndim > 1 else np.unravel_index(indices, array.shape)] = values
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(f"{where}: the sparse weights '{dense.name}' contradict themselves: {error}") from error
        graph.initializer.append(numpy_helper.from_array(array, dense.name))
    del graph.sparse_initializer[:]


def expected_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes the tensor's shape and element type call for, in raw form (elements of fewer than 8 bits share bytes).

    Of strings it is their number: their shape does not tell more.
    """
    if any(dimension < 0 for dimension in tensor.dims):
        raise ModelError(f"weights '{tensor.name}' have a negative dimension: {list(tensor.dims)}")
    count = int(math.prod(tensor.dims))
    if tensor.data_type == onnx.TensorProto.STRING:
        return count
    if tensor.data_type in NARROW_BITS:
        return -(-count * NARROW_BITS[tensor.data_type] // 8)
    try:
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError as error:
        raise ModelError(f"weights '{tensor.name}' have an element type that ONNX does not know") from error
