"""A network of one op, ``x`` to ``y``: what stands for something that is timed or done by itself."""

from typing import Any

import numpy as np
import onnx
from onnx import helper

from agent_sdk.model.model import Model, read_model
from hope_schema import TensorType


def one_op(op_type: str, kind: TensorType, **attributes: Any) -> Model:
    """``y = op(x)``, where ``x`` is of this type."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    given = helper.make_tensor_value_info("x", element, list(kind.shape))
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], **attributes)], op_type, [given], [onnx.ValueInfoProto(name="y")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read_model(onnx.shape_inference.infer_shapes(proto))
