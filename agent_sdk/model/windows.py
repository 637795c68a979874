"""Sizes of outputs on which ONNX's rules and ONNX Runtime's kernels disagree: the kernel is asked, over one channel.

It rounds up where the last window would begin behind the input, pads by another rule where windows are dilated, and
multiplies scales in another precision. Shapes decide buffers, and the runtime fills them.
"""

import math
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper

from agent_sdk.model.budget import operations
from agent_sdk.model.lone import Constants, Imports, Types, computed
from agent_sdk.model.nodes import DEFAULT_DOMAINS

POOLS: Final = frozenset({"MaxPool", "AveragePool", "LpPool"})
SCALED: Final = frozenset({"Resize", "Upsample"})
SIZED: Final = POOLS | SCALED | {"ConvTranspose"}
LARGEST: Final = 2**26
"""Elements of the largest input that is made to ask."""
MOST: Final = 2**30
"""Multiply-adds that asking may take: less than a second on one core."""
CROPPING: Final = b"tf_crop_and_resize"
"""The way of resizing in which a size depends on more than its scale."""


def by_the_kernel(
    node: onnx.NodeProto, found: dict[str, TypeProto], types: Types, constants: Constants, imports: Imports, ir: int
) -> dict[str, TypeProto]:
    """The types of a node's outputs with the sizes that the kernel makes; ``found`` where the two cannot disagree."""
    small = _over_one_channel(node, types, constants)
    if small is None:
        return found
    alone, given, kept = small
    known = [dim.dim_value for dim in found[node.output[0]].tensor_type.shape.dim]
    elements = math.prod(size for axis, size in enumerate(known) if axis not in kept)
    if operations(alone, [tuple(given[name].dims) if name else () for name in alone.input], elements) > MOST:
        return found
    made = computed(alone, given, imports, ir)
    if made is None:  # it refuses; whoever runs the node says why
        return found
    sizes = list(made[node.output[0]].dims)
    shape = [kept.get(axis, size) for axis, size in enumerate(sizes)]
    return {
        name: helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape)
        if name in (*node.output[:1], *(node.output[1:] if node.op_type in POOLS else ()))
        else kind
        for name, kind in found.items()
    }


def _over_one_channel(
    node: onnx.NodeProto, types: Types, constants: Constants
) -> tuple[onnx.NodeProto, dict[str, TensorProto], dict[int, int]] | None:
    """The node on as few zeros as its sizes need, and the sizes that it keeps by axis; None where ONNX's rules hold."""
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in SIZED:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    shape = [dim.dim_value for dim in types[node.input[0]].tensor_type.shape.dim]
    padded = "auto_pad" in attributes and attributes["auto_pad"].s != b"NOTSET"
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    zeros = {node.input[0]: [1, 1, *shape[2:]]}
    if node.op_type in POOLS and (padded or ("ceil_mode" in attributes and attributes["ceil_mode"].i)):
        kept = {0: shape[0], 1: shape[1]}
        others: list[str] = []
    elif node.op_type == "ConvTranspose" and (padded or {"output_shape", "output_padding"} & attributes.keys()):
        weights = [dim.dim_value for dim in types[node.input[1]].tensor_type.shape.dim]
        groups = attributes["group"].i if "group" in attributes else 1
        kept, others = {0: shape[0], 1: weights[1] * groups}, []
        zeros[node.input[1]] = [1, 1, *weights[2:]]
        del alone.input[2:]
        del alone.attribute[:]
        alone.attribute.extend(attribute for name, attribute in attributes.items() if name != "group")
    elif node.op_type in SCALED and (scales := _scales(node, attributes, constants, len(shape))) is not None:
        cropped = "coordinate_transformation_mode" in attributes
        cropped = cropped and attributes["coordinate_transformation_mode"].s == CROPPING
        kept = {axis: size for axis, size in enumerate(shape) if scales[axis] == 1 and not cropped}
        zeros = {node.input[0]: [1 if axis in kept else size for axis, size in enumerate(shape)]}
        others = [name for name in node.input[1:] if name]
    else:
        return None
    if any(name not in constants for name in others) or sum(map(math.prod, zeros.values())) > LARGEST:
        return None
    given = {name: constants[name] for name in others}
    for name, sizes in zeros.items():
        dtype = helper.tensor_dtype_to_np_dtype(types[name].tensor_type.elem_type)
        given[name] = numpy_helper.from_array(np.zeros(sizes, dtype), name)
    return alone, given, kept


def _scales(
    node: onnx.NodeProto, attributes: dict[str, onnx.AttributeProto], constants: Constants, rank: int
) -> np.ndarray | None:
    """The scale of each axis; None where sizes are given, or it depends on data."""
    if node.op_type == "Upsample" and "scales" in attributes:
        return np.array(attributes["scales"].floats)
    place = 2 if node.op_type == "Resize" and len(node.input) > 2 else 1
    name = node.input[place] if len(node.input) > place else ""
    if name not in constants or not math.prod(constants[name].dims):
        return None
    scales = np.ones(rank)
    axes = list(attributes["axes"].ints) if "axes" in attributes else list(range(rank))
    values = numpy_helper.to_array(constants[name])
    if len(axes) != values.size:
        return None
    scales[axes] = values
    return scales
