"""Nodes that stand alone, in ONNX Runtime: the session that says their types, and what they compute from constants.

What a constant is, is ONNX Runtime's word on the file's own op at the file's operator set: another evaluator has other
rules at old sets, and other kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, TypeProto, helper, numpy_helper

from agent_sdk.model.dtypes import FOREIGN

Types = Mapping[str, TypeProto]
Constants = Mapping[str, TensorProto]
Imports = list[onnx.OperatorSetIdProto]

UNHELD: Final = frozenset(f"tensor({name})" for name in FOREIGN)
"""Types that the runtime hands to nobody."""


def session_of(
    nodes: Sequence[onnx.NodeProto],
    types: Types,
    constants: Constants,
    wanted: Sequence[str],
    imports: Imports,
    ir_version: int,
) -> ort.InferenceSession:
    """Nodes as a network of their own, with nothing optimised.

    ``types`` are of all that they read, ``constants`` the values among it. Raises the runtime's own classes.
    """
    graph = helper.make_graph(
        nodes,
        "node",
        [helper.make_value_info(name, kind) for name, kind in types.items() if name not in constants],
        [onnx.ValueInfoProto(name=name) for name in wanted],
        list(constants.values()),
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(ir_version, 4))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def computed(
    node: onnx.NodeProto, constants: Constants, imports: Imports, ir_version: int
) -> dict[str, TensorProto] | None:
    """What a node makes of constants, by output; None where the runtime computes it not, or not as NumPy's arrays.

    The values are the session's own, not fed: kernels look at constants when they are made, and refuse a divisor of 0
    only then.
    """
    if _divides_out_of_range(node, constants):
        return None
    wanted = [name for name in node.output if name]
    read = {name: constants[name] for name in node.input if name}
    try:
        session = session_of([node], {}, read, wanted, imports, ir_version)
        if any(info.type in UNHELD for info in session.get_outputs()):
            return None
        values = session.run(wanted, {})
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes; whoever runs the node says why
        return None
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values):
        return None
    return {name: numpy_helper.from_array(value, name) for name, value in zip(wanted, values, strict=True)}


def _divides_out_of_range(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether the least whole number may be divided by -1: the processor ends a process that does."""
    if node.op_type not in ("Div", "Mod") or len(node.input) != 2:
        return False
    dividend, divisor = (numpy_helper.to_array(constants[name]) for name in node.input)
    if dividend.dtype.kind != "i" or not dividend.size or not divisor.size:
        return False
    return bool((divisor == -1).any() and (dividend == np.iinfo(dividend.dtype).min).any())
