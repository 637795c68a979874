"""OpenVINO through its C API, for runs without the interpreter: ``libopenvino_c`` beside the module's own libraries."""

from __future__ import annotations

import ctypes
import logging
import tempfile
import weakref
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import helper

from agent_sdk.model.dtypes import ELEMENT_TYPE, FOREIGN
from agent_sdk.native import address
from agent_sdk.runtimes.base import NativeCall
from agent_sdk.runtimes.openvino.package import ov

FUNCTIONS: Final = (
    "ov_core_create",
    "ov_core_read_model",
    "ov_core_compile_model",
    "ov_compiled_model_get_property",
    "ov_model_const_input_by_index",
    "ov_compiled_model_output_by_index",
    "ov_port_get_element_type",
    "ov_const_port_get_shape",
    "ov_compiled_model_create_infer_request",
    "ov_tensor_create_from_host_ptr",
    "ov_infer_request_set_input_tensor_by_index",
    "ov_infer_request_set_output_tensor_by_index",
    "ov_infer_request_infer",
    "ov_model_free",
    "ov_compiled_model_free",
    "ov_output_const_port_free",
    "ov_infer_request_free",
    "ov_tensor_free",
    "ov_shape_free",
    "ov_free",
)
"""What is used. Those that return anything return a status, 0 when all is well."""
ONNX_TYPES: Final = {name: number for name, number in ELEMENT_TYPE.items() if name not in FOREIGN}
"""NumPy's name of each element type, and ONNX's."""
log = logging.getLogger(__name__)


class _Shape(ctypes.Structure):
    _fields_ = (("rank", c_int64), ("dims", ctypes.POINTER(c_int64)))


class Api:
    """The library's functions and the one core made through them."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        for name in FUNCTIONS:
            getattr(self.library, name)  # raises AttributeError
        self.library.ov_get_last_err_msg.restype = c_char_p
        self.infer = address(self.library.ov_infer_request_infer)
        self.core = self.make("ov_core_create")

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises RuntimeError, as the Python module does."""
        if getattr(self.library, name)(*arguments):
            raise RuntimeError(self.said())

    def make(self, name: str, *arguments: Any) -> c_void_p:
        """Call a function whose last argument is where it puts what it makes. Raises RuntimeError."""
        made = c_void_p()
        self.do(name, *arguments, byref(made))
        return made

    def free(self, name: str, thing: c_void_p) -> None:
        getattr(self.library, name)(thing)

    @cached_property
    def element_types(self) -> Mapping[str, int]:
        """The number of each NumPy type. Releases differ, so a model that has all of them is asked."""
        ports = [helper.make_tensor_value_info(name, kind, (1,)) for name, kind in ONNX_TYPES.items()]
        graph = helper.make_graph([], "types", ports, ports)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            file.write(proto.SerializeToString())
            file.flush()
            model = self.read_model(file.name)
        found = dict[str, int]()
        for index, name in enumerate(ONNX_TYPES):
            port, number = self.make("ov_model_const_input_by_index", model, c_size_t(index)), c_int()
            self.do("ov_port_get_element_type", port, byref(number))
            self.free("ov_output_const_port_free", port)
            found[name] = number.value
        return found

    def read_model(self, path: str) -> c_void_p:
        """Read a file, as ``openvino.Core`` does. Raises RuntimeError."""
        model = self.make("ov_core_read_model", self.core, path.encode(), None)
        weakref.finalize(model, self.free, "ov_model_free", c_void_p(model.value)).atexit = False
        return model

    def compile_model(self, model: c_void_p, device: str, config: Mapping[str, Any]) -> NativeModel:
        """Compile what was read, likewise. Raises RuntimeError."""
        values = [
            str(part).upper() if isinstance(part, bool) else str(part) for pair in config.items() for part in pair
        ]
        pointer = c_void_p()
        self.do(
            "ov_core_compile_model",
            self.core,
            model,
            device.encode(),
            c_size_t(len(values)),
            byref(pointer),
            *(c_char_p(value.encode()) for value in values),
        )
        return NativeModel(self, pointer)

    def said(self) -> str:
        """What the last function that failed says."""
        return (self.library.ov_get_last_err_msg() or b"no reason given").decode(errors="replace")


@cache
def api() -> Api | None:
    """The C API; None where it is not beside the Python module, or lacks something."""
    folder = Path(ov.__file__).parent / "libs"
    for path in sorted(folder.glob("libopenvino_c.so*")):
        try:
            return Api(path)
        except (OSError, AttributeError) as error:
            log.warning("OpenVINO's segments are launched by Python: %s", error)
    return None


class NativeModel:
    """A compiled model."""

    def __init__(self, api: Api, pointer: c_void_p) -> None:
        self.api = api
        self.pointer = pointer
        weakref.finalize(self, api.free, "ov_compiled_model_free", pointer).atexit = False

    def get_property(self, name: str) -> Any:
        """As the Python class gives it: a number, a list of devices, or a text."""
        text = c_char_p()
        self.api.do("ov_compiled_model_get_property", self.pointer, name.encode(), byref(text))
        found = (text.value or b"").decode()
        self.api.library.ov_free(text)
        return found.split() if name == "EXECUTION_DEVICES" else int(found) if found.isdigit() else found

    def output_shape(self, index: int) -> tuple[int, ...]:
        """Raises RuntimeError where it is not static."""
        port = self.api.make("ov_compiled_model_output_by_index", self.pointer, c_size_t(index))
        shape = _Shape()
        try:
            self.api.do("ov_const_port_get_shape", port, byref(shape))
            return tuple(shape.dims[: shape.rank])
        finally:
            self.api.free("ov_output_const_port_free", port)
            self.api.library.ov_shape_free(byref(shape))


class NativeRequest:
    """An infer request over memory of ours, which is kept alive. Raises RuntimeError."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._pointer = model.api.make("ov_compiled_model_create_infer_request", model.pointer)
        weakref.finalize(self, model.api.free, "ov_infer_request_free", self._pointer).atexit = False
        self.native = (NativeCall(model.api.infer, (self._pointer.value or 0,)),)

    def set(self, kind: str, index: int, array: np.ndarray) -> None:
        """Have the ``input`` or ``output`` of this index in an array. Raises RuntimeError."""
        api = self._model.api
        element = api.element_types.get(str(array.dtype))
        if element is None or not array.flags.c_contiguous:
            raise RuntimeError(f"numpy arrays of {array.dtype}, in this order, cannot be handed over")
        shape = _Shape(array.ndim, (c_int64 * max(array.ndim, 1))(*array.shape))
        tensor = api.make("ov_tensor_create_from_host_ptr", c_int(element), shape, c_void_p(array.ctypes.data))
        try:
            api.do(f"ov_infer_request_set_{kind}_tensor_by_index", self._pointer, c_size_t(index), tensor)
        finally:
            api.free("ov_tensor_free", tensor)

    def infer(self) -> None:
        """Run. Raises RuntimeError."""
        self._model.api.do("ov_infer_request_infer", self._pointer)

    def said(self) -> str:
        return self._model.api.said()
