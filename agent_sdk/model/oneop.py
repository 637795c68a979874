"""Networks of one op, or of the same op several times: what stands for something that is timed or done by itself."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import helper

from agent_sdk.model.model import Model, read_model
from hope_schema import TensorType


def one_op(op_type: str, kind: TensorType, *, times: int = 1, **attributes: Any) -> Model:
    """``y = op(x)``, where ``x`` is of this type; or so many times, each on what the one before has made."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    names = ["x", *(f"x{place}" for place in range(1, times)), "y"]
    nodes = [helper.make_node(op_type, [read], [made], **attributes) for read, made in pairwise(names)]
    given = helper.make_tensor_value_info("x", element, list(kind.shape))
    graph = helper.make_graph(nodes, op_type, [given], [onnx.ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read_model(onnx.shape_inference.infer_shapes(proto))
