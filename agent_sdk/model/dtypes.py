"""Element types: ONNX's numbers, the NumPy names by which the contract knows them, and ONNX Runtime's names."""

from collections.abc import Mapping
from typing import Final, get_args

import onnx
from onnx import helper

from hope_schema import TensorType
from hope_schema.graph import DType

_ONNX_NAMES: Final = {"float32": "FLOAT", "float64": "DOUBLE"}

ELEMENT_TYPE: Final[Mapping[DType, int]] = {
    name: getattr(onnx.TensorProto, _ONNX_NAMES.get(name, name.upper())) for name in get_args(DType)
}
"""NumPy name to ``TensorProto.DataType``."""

DTYPE: Final[Mapping[int, DType]] = {number: name for name, number in ELEMENT_TYPE.items()}
"""``TensorProto.DataType`` to NumPy name; types that cannot be planned (strings, complex, float8) are absent."""

FOREIGN: Final = frozenset({"bfloat16", "int4", "uint4"})
"""NumPy types only where another package registers them: ONNX Runtime refuses these, and 4 bits take a byte in them."""

ELEMENT_NAMES: Final[Mapping[str, int]] = {name.lower(): number for name, number in onnx.TensorProto.DataType.items()}
"""ONNX Runtime's names of element types."""

NUMPY_TYPES: Final[Mapping[str, DType]] = {
    f"tensor({name})": DTYPE[number]
    for name, number in ELEMENT_NAMES.items()
    if number in DTYPE and DTYPE[number] not in FOREIGN
}
"""Types of tensors whose elements NumPy has, by ONNX Runtime's names."""


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPE[kind.dtype], kind.shape)
