"""Nodes that stand alone, in ONNX Runtime: the session that says their types, and what they compute from constants.

What a constant is, is ONNX Runtime's word on the file's own op at the file's operator set: another evaluator has other
rules at old sets, and other kernels.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, TypeProto, defs, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from agent_sdk.model.dtypes import FOREIGN
from agent_sdk.model.nodes import DEFAULT_DOMAINS

Types = Mapping[str, TypeProto]
Constants = Mapping[str, TensorProto]
Imports = list[onnx.OperatorSetIdProto]

UNHELD: Final = frozenset(f"tensor({name})" for name in FOREIGN)
"""Types that the runtime hands to nobody."""
HALF: Final = "tensor(float16)"


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
        types = {info.type for info in session.get_outputs()}
        half = HALF in types or any(tensor.data_type == TensorProto.FLOAT16 for tensor in read.values())
        if types & UNHELD or (half and not _is_computed_in_half(node, imports)):
            return None
        values = session.run(wanted, {})
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes; whoever runs the node says why
        return None
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values):
        return None
    return {name: numpy_helper.from_array(value, name) for name, value in zip(wanted, values, strict=True)}


def _is_computed_in_half(node: onnx.NodeProto, imports: Imports) -> bool:
    """Whether the runtime has a kernel in float16 for a node.

    Where it has none it computes in float32, and rounds where several of these nodes end: not after each.
    """
    opset = next(entry.version for entry in imports if entry.domain in DEFAULT_DOMAINS)
    since = defs.get_schema(node.op_type, opset).since_version
    return any(first <= since <= last for first, last in _sets_in_half().get(node.op_type, ()))


@cache
def _sets_in_half() -> Mapping[str, Sequence[tuple[int, int]]]:
    """First and last operator set of each of ONNX's operators that the runtime computes in float16 on a CPU."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernel in get_all_opkernel_def():
        if (kernel.provider, kernel.domain) == ("CPUExecutionProvider", "") and any(
            HALF in types for types in kernel.type_constraints.values()
        ):
            found[kernel.op_name].append(kernel.version_range)
    return found


def _divides_out_of_range(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether the least whole number may be divided by -1: the processor ends a process that does."""
    if node.op_type not in ("Div", "Mod") or len(node.input) != 2:
        return False
    dividend, divisor = (numpy_helper.to_array(constants[name]) for name in node.input)
    if dividend.dtype.kind != "i" or not dividend.size or not divisor.size:
        return False
    return bool((divisor == -1).any() and (dividend == np.iinfo(dividend.dtype).min).any())
