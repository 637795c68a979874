"""Draws single ops of every kind that can be cut, with all that their attributes allow, as models that make ``y``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[[st.SearchStrategy[Any]], Any]
OPSET = 17


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], weights: dict[str, Any], opset: int = OPSET
) -> onnx.ModelProto:
    """A model that ends in ``y``; weights are arrays, or shapes to be filled at random."""
    rng = np.random.default_rng(3)
    filled = {
        name: value if isinstance(value, np.ndarray) else rng.standard_normal(value).astype(np.float32)
        for name, value in weights.items()
    }
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in filled.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def several(draw: Draw, count: int, low: int, high: int) -> list[int]:
    """So many whole numbers."""
    return [draw(st.integers(low, high)) for _ in range(count)]


def convolution(draw: Draw) -> onnx.ModelProto:
    """Grouped or depthwise or neither, one to three dimensions, explicit or automatic padding, with its followers."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    channels, filters = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 4))
    kernel, dilations = several(draw, rank, 1, 4), several(draw, rank, 1, 2)
    attributes: dict[str, Any] = {"strides": several(draw, rank, 1, 3), "dilations": dilations, "group": groups}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto == "NOTSET":
        attributes["pads"] = several(draw, 2 * rank, 0, 2)
    else:
        attributes |= {"auto_pad": auto, "dilations": [1] * rank}
    size = several(draw, rank, 8, 14)
    bias = draw(st.booleans())
    nodes = [helper.make_node("Conv", ["x", "w", *(["b"] if bias else [])], ["c"], **attributes)]
    weights = {"w": (filters, channels // groups, *kernel), **({"b": (filters,)} if bias else {})}
    if draw(st.booleans()):
        nodes.append(helper.make_node("BatchNormalization", ["c", *"smuv"], ["n"]))
        weights |= dict.fromkeys("smu", (filters,)) | {"v": np.full(filters, 0.5, np.float32)}
    nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["y"]))
    return model(nodes, {"x": (1, channels, *size)}, weights)


def transposed(draw: Draw) -> onnx.ModelProto:
    """Transposed convolution; strides beyond the kernel leave gaps, output padding adds rows that nobody reaches.

    How far it is padded is said, or follows from the size that it makes.
    """
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = groups * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, strides, dilations = several(draw, 2, 1, 4), several(draw, 2, 1, 3), several(draw, 2, 1, 2)
    extra = [draw(st.integers(0, stride - 1)) for stride in strides]
    pads = [draw(st.integers(0, min(2, (size - 1)))) for size in kernel] * 2
    size = several(draw, 2, 4, 9)
    padding: dict[str, Any] = {"pads": pads, "output_padding": extra}
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto != "NOTSET":
        padding = {"auto_pad": auto}
    elif draw(st.booleans()):
        made = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)]
        padding = {"output_shape": [full - cut for full, cut in zip(made, several(draw, 2, 0, 2), strict=True)]}
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], strides=strides, dilations=dilations, group=groups, **padding
    )
    weights = {"w": (channels, filters, *kernel), "b": (filters * groups,)}
    return model([node], {"x": (1, channels, *size)}, weights)


def pooling(draw: Draw) -> onnx.ModelProto:
    """Maximum or average, explicit or automatic padding, counted or not, sizes rounded up or down."""
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = several(draw, 2, 1, 4)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": several(draw, 2, 1, 3),
        "ceil_mode": draw(st.integers(0, 1)),
    }
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    else:
        attributes["dilations"] = several(draw, 2, 1, 2)
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    if auto == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, size - 1)) for size in kernel] * 2
    else:
        strides = [min(pair) for pair in zip(attributes["strides"], kernel, strict=True)]
        attributes |= {"auto_pad": auto, "strides": strides}
        attributes.pop("dilations", None)
    return model([helper.make_node(kind, ["x"], ["y"], **attributes)], {"x": (1, 5, *several(draw, 2, 9, 14))}, {})


def product(draw: Draw) -> onnx.ModelProto:
    """A matrix product with a constant or of two tensors, in batches or not, or with both transposed and added to."""
    rows, inner, columns = several(draw, 3, 2, 7)
    kind = draw(st.sampled_from(["constant", "batched", "gemm"]))
    if kind == "constant":
        return model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, rows, inner)}, {"w": (inner, columns)})
    if kind == "batched":
        heads = draw(st.integers(2, 4))
        inputs = {"x": (1, heads, rows, inner), "z": (draw(st.sampled_from([1, 2])), heads, inner, columns)}
        return model([helper.make_node("MatMul", ["x", "z"], ["y"])], inputs, {})
    turned = several(draw, 2, 0, 1)
    left, right = (rows, inner)[:: -1 if turned[0] else 1], (inner, columns)[:: -1 if turned[1] else 1]
    added = draw(st.sampled_from([(columns,), (rows, 1), (rows, columns), (1,)]))
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], transA=turned[0], transB=turned[1], alpha=0.5, beta=2.0)
    return model([node], {"x": left}, {"w": right, "c": added})


def elementwise(draw: Draw) -> onnx.ModelProto:
    """A binary op with broadcasting on either side, then one of a single input."""
    shape = (2, *several(draw, 3, 2, 6))
    other = tuple(draw(st.sampled_from([1, size])) for size in shape)[draw(st.integers(0, 3)) :]
    kind = draw(st.sampled_from(["Add", "Mul", "Sub", "Max"]))
    order = draw(st.sampled_from([["x", "z"], ["z", "x"], ["x", "w"], ["w", "x"]]))
    inputs = {"x": shape} | ({"z": other} if "z" in order else {})
    nodes = [
        helper.make_node(kind, order, ["t"]),
        helper.make_node(draw(st.sampled_from(["Relu", "Sigmoid", "Identity", "Neg"])), ["t"], ["y"]),
    ]
    return model(nodes, inputs, {"w": other} if "w" in order else {})


def normalised(draw: Draw) -> onnx.ModelProto:
    """What normalises over channels, rows or an axis."""
    shape = (2, *several(draw, 3, 2, 6))
    kind = draw(
        st.sampled_from(["Softmax", "LayerNormalization", "InstanceNormalization", "LRN", "BatchNormalization"])
    )
    channels = (shape[1],)
    last = (*(draw(st.sampled_from([1, size])) for size in shape[:3]), shape[3])[draw(st.integers(0, 3)) :]
    inputs: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
        "Softmax": ([], {"axis": draw(st.sampled_from([1, 2, 3, -1]))}, {}),
        "LayerNormalization": (["s", "m"], {}, {"s": last, "m": last}),
        "InstanceNormalization": (["s", "m"], {}, {"s": channels, "m": channels}),
        "LRN": ([], {"size": 3}, {}),
        "BatchNormalization": (
            ["s", "m", "u", "v"], {},
            {"s": channels, "m": channels, "u": channels, "v": np.full(channels, 0.5, np.float32)},
        ),
    }  # fmt: skip
    names, attributes, weights = inputs[kind]
    return model([helper.make_node(kind, ["x", *names], ["y"], **attributes)], {"x": shape}, weights)


def reshaped(draw: Draw) -> onnx.ModelProto:
    """Heads of an attention put apart or together, turned, flattened, stretched; means."""
    batch, rows, heads, width = 1, *several(draw, 3, 2, 5)
    kind = draw(st.sampled_from(["apart", "together", "turned", "flat", "squeezed", "mean", "pad", "concat", "big"]))
    if kind == "apart":
        weights = {"s": np.array([batch, rows, heads, width], np.int64)}
        return model([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (batch, rows, heads * width)}, weights)
    if kind == "together":
        weights = {"s": np.array([batch, rows, -1], np.int64)}
        return model([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (batch, rows, heads, width)}, weights)
    shape = (batch, rows, heads, width)
    if kind == "turned":
        perm = draw(st.permutations(range(4)))
        return model([helper.make_node("Transpose", ["x"], ["y"], perm=perm)], {"x": shape}, {})
    if kind == "flat":
        return model([helper.make_node("Flatten", ["x"], ["y"], axis=draw(st.integers(1, 3)))], {"x": shape}, {})
    if kind == "squeezed":
        weights = {"a": np.array([0], np.int64)}
        return model([helper.make_node("Squeeze", ["x", "a"], ["y"])], {"x": shape}, weights)
    if kind == "mean":
        axes, keep = draw(st.sampled_from([[1], [2, 3], [3]])), draw(st.integers(0, 1))
        return model([helper.make_node("ReduceMean", ["x"], ["y"], axes=axes, keepdims=keep)], {"x": shape}, {})
    if kind == "pad":
        pads = [0, 0, 1, draw(st.integers(0, 1)), 0, 0, draw(st.sampled_from([-1, 1])), 0]
        if draw(st.booleans()):
            return model([helper.make_node("Pad", ["x"], ["y"], pads=pads)], {"x": shape}, {}, opset=9)
        return model([helper.make_node("Pad", ["x", "p"], ["y"])], {"x": shape}, {"p": np.array(pads, np.int64)})
    if kind == "concat":
        inputs = {"x": shape, "z": (batch, rows, 3, width)}
        return model([helper.make_node("Concat", ["x", "z", "x"], ["y"], axis=2)], inputs, {})
    factors = several(draw, 2, 1, 3)
    return resized(draw, shape, factors)


def resized(draw: Draw, shape: tuple[int, ...], factors: list[int]) -> onnx.ModelProto:
    """Nearest neighbours by factors, or by sizes, or in between; by factors of old operator sets, too."""
    mode = draw(st.sampled_from([("nearest", "half_pixel", "round_prefer_floor"), ("nearest", "asymmetric", "floor"),
                                 ("linear", "half_pixel", "floor"), ("nearest", "asymmetric", "ceil")]))  # fmt: skip
    attributes = dict(zip(("mode", "coordinate_transformation_mode", "nearest_mode"), mode, strict=True))
    scales = [1.0, 1.0, *map(float, factors)]
    if draw(st.booleans()):
        weights = {"s": np.array([*shape[:2], *(a * b for a, b in zip(shape[2:], factors, strict=True))], np.int64)}
        node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attributes)
    else:
        scales[3] += draw(st.sampled_from([0.0, 0.05, 0.18]))  # mostly rounds to the same size, at other coordinates
        weights = {"s": np.array(scales, np.float32)}
        opset = draw(st.sampled_from([7, 9, 10, OPSET, OPSET]))
        if opset == 7:
            return model([helper.make_node("Upsample", ["x"], ["y"], scales=scales)], {"x": shape}, {}, opset)
        if opset < OPSET:
            kind = "Upsample" if opset == 9 else "Resize"
            return model([helper.make_node(kind, ["x", "s"], ["y"])], {"x": shape}, weights, opset)
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
    return model([node], {"x": shape}, weights)


KINDS: dict[str, Callable[[Draw], onnx.ModelProto]] = {
    kind.__name__: kind for kind in (convolution, transposed, pooling, product, elementwise, normalised, reshaped)
}
