"""Every operator in every type at the values of that type at which runtimes differ.

The operators, their attributes and shapes are those of the ONNX package's own tests; each is made anew in every type
that it may have. Pairs, which compilers fuse, are written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, parser

from agent_sdk.model.bounds import INDICES, NARROW, SIZES
from agent_sdk.model.hard import FAR, TIES, choices
from tests import CAMPAIGN
from tests.agent.onnx_cases import Case, cases

TYPES = {
    "float32": "float", "float16": "float16", "float64": "double", "bool": "bool", "int8": "int8", "uint8": "uint8",
    "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64",
}  # fmt: skip
"""The types by their NumPy names, and what ONNX's text calls them."""
SCALES = {
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "QLinearConv": (1, 2, 3, 4, 5, 6, 7, 8),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "ConvInteger": (2, 3), "MatMulInteger": (2, 3),
}  # fmt: skip
"""Inputs that quantised networks hold as constants: scales, zero points, the weights of a convolution."""
MOST = 60 if CAMPAIGN else 8
"""Tests of each operator."""
RECURRENT = ("GRU", "LSTM", "RNN")
"""Large values of opposite signs leave nothing but rounding in their sums, which decides what a gate lets through."""
Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Hard:
    """A small network and inputs for it.

    Attributes:
        op: what is tried, in words.
        dtype: the type that its values have.
        model: one op, or a few.
        feeds: inputs by name, several of them.
    """

    op: str
    dtype: str
    name: str
    model: onnx.ModelProto
    feeds: list[Feed]


def drawn(dtype: np.dtype, shape: tuple[int, ...], seed: int, kind: str) -> np.ndarray:
    """Values of a type: ``ties`` near zero, ``far`` away from it, or ``ends``, up to the largest that it has."""
    values = choices(dtype)
    if dtype.kind == "f" and kind != "ends":
        values = np.array(TIES if kind == "ties" else (*TIES, *FAR), dtype)
    elif dtype.kind in "iu" and kind != "ends":
        most = 7 if kind == "ties" else NARROW
        values = values[(values.astype(object) <= most) & (values.astype(object) >= -most)]
    return np.random.default_rng(seed).choice(values, shape)


def retyped(case: Case, every: int) -> Iterator[Hard]:
    """One test of the ONNX package, made anew in the types that its operator may have."""
    [node] = case.model.graph.node
    version = next(entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx"))
    schema = defs.get_schema(node.op_type, version, "")
    allowed = {one.type_param_str: set(one.allowed_type_strs) for one in schema.type_constraints}
    given = dict(
        zip((info.name for info in case.model.graph.input), map(np.asarray, case.data_sets[0][0]), strict=True)
    )
    formal = {name: schema.inputs[min(place, len(schema.inputs) - 1)] for place, name in enumerate(node.input)}
    made = {name: schema.outputs[min(place, len(schema.outputs) - 1)] for place, name in enumerate(node.output)}
    index = node.input[INDICES[node.op_type]] if node.op_type in INDICES else ""
    held = (*SIZES.get(node.op_type, ()), *SCALES.get(node.op_type, ()))
    sizes = {node.input[place] for place in held if place < len(node.input) and node.input[place]}
    for parameter in dict.fromkeys(one.type_str for one in formal.values() if one.type_str in allowed):
        own = {name for name, one in formal.items() if one.type_str == parameter and name not in sizes | {index, ""}}
        for place, (dtype, text) in enumerate(TYPES.items()):
            if not own or f"tensor({text})" not in allowed[parameter] or (every > 1 and place % every):
                continue
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.ir_version = min(model.ir_version, 10)
            number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            for info in (*model.graph.input, *model.graph.output):
                one = formal.get(info.name) or made.get(info.name)
                if info.name in own or (info.name in made and one is not None and one.type_str == parameter):
                    info.type.tensor_type.elem_type = number
            _hold(
                model,
                {
                    name: value.astype(dtype) if formal[name].type_str == parameter else value
                    for name, value in given.items()
                    if name in sizes
                },
            )
            kinds = ("ties", "ties") if node.op_type in RECURRENT else ("ties", "ties", "far", "far", "ends")
            feeds = [
                {
                    name: drawn(np.dtype(dtype), value.shape, seed, kind) if name in own else value
                    for name, value in given.items()
                    if name not in sizes
                }
                for seed, kind in enumerate(kinds)
            ]
            if index:
                feeds += [feed | {index: moved} for feed in feeds[:2] for moved in _moved(given[index])]
            yield Hard(node.op_type, dtype, case.name, model, feeds)


def _moved(index: np.ndarray) -> list[np.ndarray]:
    """Indices that count from the end, and such that lie outside."""
    outside = index.copy()
    outside.flat[-1:] = 1000
    return [-1 - np.zeros_like(index), outside, index - 1000]


def _hold(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> None:
    """Make inputs constants."""
    left = [info for info in model.graph.input if info.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(left)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())


def single_ops(every: int = 1, most: int = MOST) -> Iterator[Hard]:
    """Single operators, at most so many tests of each; of ``every`` modules of tests one, of as many types one.

    Of casts there is one in three, unless every one is tried.
    """
    seen: Counter[str] = Counter()
    for case in cases(every):
        nodes = case.model.graph.node
        plain = len(nodes) == 1 and nodes[0].domain in ("", "ai.onnx") and case.data_sets
        if not plain or any(one.type == onnx.AttributeProto.GRAPH for one in nodes[0].attribute):
            continue
        values = [value for value in case.data_sets[0][0] if isinstance(value, np.ndarray | np.generic)]
        if len(values) != len(case.model.graph.input) or any(value.dtype.kind not in "biuf" for value in values):
            continue
        seen[nodes[0].op_type] += 1
        if seen[nodes[0].op_type] <= most:
            yield from retyped(case, every)
    yield from casts(min(every, 3))


def casts(every: int) -> Iterator[Hard]:
    """From every type to every other, or to one in ``every``."""
    for row, (source, text) in enumerate(TYPES.items()):
        for target in [*TYPES][row % every :: every]:
            number = helper.np_dtype_to_tensor_dtype(np.dtype(target))
            model = parser.parse_model(
                f'<ir_version: 8, opset_import: ["" : 17]> g ({text}[64] x) => ({TYPES[target]}[64] y) '
                f"{{ y = Cast <to = {number}> (x) }}"
            )
            feeds = [
                {"x": drawn(np.dtype(source), (64,), seed, kind)} for seed, kind in enumerate(("ties", "far", "ends"))
            ]
            yield Hard(f"Cast to {target}", source, "cast", model, feeds)


PAIRS = {
    "Mul, Add": "z = Mul (x, y) w = Add (z, x)",
    "Add, Relu": "z = Add (x, y) w = Relu (z)",
    "Sub, Clip": "l = Constant <value_float = -1.0> () z = Sub (x, y) w = Clip (z, l)",
    "MatMul, Add": "z = MatMul (x, y) w = Add (z, y)",
    "Mul, Sigmoid, Mul": "s = Sigmoid (x) z = Mul (x, s) w = Add (z, y)",
    "Equal, Cast, Mul": "e = Equal (x, y) f = Cast <to = 1> (e) w = Mul (f, x)",
    "Less, Where": "e = Less (x, y) w = Where (e, x, y)",
    "Abs, Sqrt": "a = Abs (x) w = Sqrt (a)",
    "MatMul, Softmax": "z = MatMul (x, y) w = Softmax (z)",
    "Max, Min": "a = Max (x, y) w = Min (a, x)",
    "Dropout, Equal, Where": "d = Dropout (x) e = Equal (x, y) w = Where (e, y, d)",
}
"""Ops that compilers fuse, or that some runtime takes beside others only: of x and y of 8 by 8 they make w."""


def pairs() -> Iterator[Hard]:
    """The pairs, in the types that they may have."""
    for name, body in PAIRS.items():
        for dtype, text in TYPES.items():
            # In float16 a logit's own rounding is a per cent of what Softmax makes of it.
            if dtype != "float32" and any(word in body for word in ("Constant", "Cast", "Softmax")):
                continue
            try:
                model = parser.parse_model(
                    f'<ir_version: 8, opset_import: ["" : 17]> g ({text}[8,8] x, {text}[8,8] y) => ({text}[8,8] w) '
                    f"{{ {body} }}"
                )
                onnx.checker.check_model(model, full_check=True)
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
                continue
            feeds = [
                {
                    "x": drawn(np.dtype(dtype), (8, 8), seed, kind),
                    "y": drawn(np.dtype(dtype), (8, 8), seed + 100, kind),
                }
                for seed, kind in enumerate(("ties", "ties", "far", "far", "ends"))
            ]
            yield Hard(name, dtype, name, model, feeds)


SPRINGS = {
    "root": "s = Sqrt (x)",
    "pole": "r = Reciprocal (x) s = Mul (x, r)",
    "entropy": "p = Relu (x) l = Log (p) s = Mul (p, l)",
    "power": "e = Constant <value_float = -1.0> () r = Pow (x, e) s = Mul (x, r)",
    "quotient": "a = Abs (x) c = Cast <to = 6> (a) b = Cast <to = 1> (c) r = Sign (b) q = Div (r, r) s = Mul (q, y)",
}
"""Where x holds what is below 0, or 0, s holds what is no number."""
PASSES = {
    "move": "t = Transpose (s)",
    "scale": "c = Constant <value_float = 2.0> () t = Div (s, c)",
    "choose": "m = Greater (x, y) t = Where (m, y, s)",
    "pad": "c = Constant <value = int64[4] {0, 1, 0, 1}> () t = Pad (s, c)",
    "bend": "g = Sigmoid (s) t = LeakyRelu (g)",
    "sum": "t = MatMul (s, y)",
    "fold": "t = ReduceLogSumExp <axes = [1]> (s)",
}
HIDERS = {
    "Relu": "w = Relu (t)",
    "Exp": "w = Exp (t)",
    "Celu": "w = Celu (t)",
    "Clip": "c0 = Constant <value_float = -9.0> () c1 = Constant <value_float = 9.0> () w = Clip (t, c0, c1)",
    "Max": "c0 = Constant <value_float = 0.5> () w = Max (t, c0)",
    "Softmax": "u = Softmax <axis = 0> (t) w = ReduceMax <axes = [1]> (u)",
    "Shrink": "w = Shrink (t)",
    "Cast": "b = Cast <to = 9> (t) w = Cast <to = 1> (b)",
    "Sign": "w = Sign (t)",
    "Hardmax": "w = Hardmax (t)",
    "ArgMax": "b = ArgMax (t) w = Cast <to = 1> (b)",
    "TopK": "c = Constant <value = int64[1] {3}> () w, i = TopK <largest = 0> (t, c)",
    "LpNormalization": "w = LpNormalization (t)",
    "ReduceMax": "m = ReduceMax <axes = [1]> (t) b = IsNaN (m) w = Cast <to = 1> (b)",
    "ThresholdedRelu": "m = ThresholdedRelu (t) b = IsNaN (m) w = Cast <to = 1> (b)",
}


def hidden() -> Iterator[Hard]:
    """What is no number, made inside, handed on and made an ordinary value again: of x and y of 8 by 8 w."""
    ways = [(spring, way, "Relu") for spring in SPRINGS for way in PASSES]
    ways += [("root", "move", hider) for hider in HIDERS]
    feeds = [{name: drawn(np.dtype("float32"), (8, 8), seed, "ties") for name, seed in (("x", 0), ("y", 100))}]
    for spring, way, hider in dict.fromkeys(ways):
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[8,8] x, float[8,8] y) => (float w) '
            f"{{ {SPRINGS[spring]} {PASSES[way]} {HIDERS[hider]} }}"
        )
        yield Hard(f"{spring}, {way}, {hider}", "float32", hider, model, feeds)
