"""ONNX Runtime through its C API: sessions that can be run without the interpreter.

The Python module's own copy of the runtime is used: it hands its API to every library of custom operators that is
registered with session options, and ours keeps it. The API is a table of functions that only ever grows.
"""

import ctypes
import logging
import weakref
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort

from agent_sdk.native import library
from agent_sdk.runtimes.base import NativeCall
from agent_sdk.runtimes.ort.options import QUIET

VERSION: Final = 16
"""Of the API: the first whose table has everything below."""
NOT_IMPLEMENTED: Final = 9
"""The error code that tells an op the runtime lacks from a model it refuses; the text does not say."""
ENTRIES: Final = {
    "GetErrorCode": (1, c_int, (c_void_p,)),
    "GetErrorMessage": (2, c_char_p, (c_void_p,)),
    "CreateEnv": (3, c_void_p, (c_int, c_char_p, c_void_p)),
    "CreateSessionFromArray": (8, c_void_p, (c_void_p, c_char_p, c_size_t, c_void_p, c_void_p)),
    "CreateRunOptions": (39, c_void_p, (c_void_p,)),
    "RunOptionsSetRunLogSeverityLevel": (41, c_void_p, (c_void_p, c_int)),
    "CreateTensorWithDataAsOrtValue": (
        49,
        c_void_p,
        (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_int, c_void_p),
    ),
    "CreateCpuMemoryInfo": (69, c_void_p, (c_int, c_int, c_void_p)),
    "ReleaseStatus": (93, None, (c_void_p,)),
    "ReleaseSession": (95, None, (c_void_p,)),
    "ReleaseValue": (96, None, (c_void_p,)),
    "RunWithBinding": (133, c_void_p, (c_void_p, c_void_p, c_void_p)),
    "CreateIoBinding": (134, c_void_p, (c_void_p, c_void_p)),
    "ReleaseIoBinding": (135, None, (c_void_p,)),
    "BindInput": (136, c_void_p, (c_void_p, c_char_p, c_void_p)),
    "BindOutput": (137, c_void_p, (c_void_p, c_char_p, c_void_p)),
}
"""Place in the table, result and arguments of what is used. A result of NULL is no error."""
MOST_VALUES: Final = 64
"""Tensors of a binding that are kept made: who takes in one input after the other has them come to the same places."""
log = logging.getLogger(__name__)
_SILENT_RUN: Final = ort.RunOptions()
ARENA, DEFAULT_MEMORY = 1, 0


class OrtError(Exception):
    """What the runtime says."""


class Api:
    """The functions of the table, and what every session needs."""

    def __init__(self, base: int) -> None:
        get = ctypes.CFUNCTYPE(c_void_p, c_uint32)(ctypes.cast(base, ctypes.POINTER(c_void_p))[0])
        table = get(VERSION)
        if not table:
            raise OrtError(f"ONNX Runtime {ort.__version__} has no C API {VERSION}")
        entries = ctypes.cast(table, ctypes.POINTER(c_void_p))
        self._functions: dict[str, Any] = {
            name: ctypes.CFUNCTYPE(result, *arguments)(entries[place])
            for name, (place, result, arguments) in ENTRIES.items()
        }
        self.run_with_binding = int(entries[ENTRIES["RunWithBinding"][0]])
        self.env = self.make("CreateEnv", QUIET, b"hope")
        self.run_options = self.make("CreateRunOptions")
        self.do("RunOptionsSetRunLogSeverityLevel", self.run_options, QUIET)
        self.memory = self.make("CreateCpuMemoryInfo", ARENA, DEFAULT_MEMORY)

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises OrtError."""
        status = self._functions[name](*arguments)
        if status:
            raise OrtError(self.said(status))

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument is where it puts what it makes. Raises OrtError."""
        made = c_void_p()
        self.do(name, *arguments, byref(made))
        return made.value or 0

    def release(self, name: str, thing: int) -> None:
        self._functions[name](thing)

    def said(self, status: int) -> str:
        """The text of a status, which is freed."""
        text: bytes = self._functions["GetErrorMessage"](status)
        code = self._functions["GetErrorCode"](status)
        try:
            return ("NOT_IMPLEMENTED: " if code == NOT_IMPLEMENTED else "") + text.decode(errors="replace")
        finally:
            self._functions["ReleaseStatus"](status)


@cache
def _api(base: int | None) -> Api | None:
    """None where this release of the runtime has no such API, which is logged once."""
    try:
        return Api(base) if base else None
    except OrtError as error:
        log.warning("ONNX Runtime's segments are launched by Python: %s", error)
        return None


class NativeSession:
    """A session on the CPU's provider. Raises OrtError where the runtime refuses the model."""

    def __init__(self, api: Api, model: bytes, options: int) -> None:
        self.api = api
        self.pointer = api.make("CreateSessionFromArray", api.env, model, len(model), options)
        weakref.finalize(self, api.release, "ReleaseSession", self.pointer).atexit = False


AnySession: TypeAlias = NativeSession | ort.InferenceSession


def native_session(model: bytes, options: ort.SessionOptions) -> NativeSession | None:
    """A session with these options that native lanes can run; None where there is no library, or no such API."""
    lanes = library()
    if lanes is None:
        return None
    options.register_custom_ops_library(lanes._name)
    api, own = _api(lanes.hope_ort_api_base()), lanes.hope_ort_options()
    return NativeSession(api, model, own) if api is not None and own else None


class NativeBinding:
    """A session's inputs and outputs in memory of ours, which is kept alive."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        api = session.api
        self._pointer = api.make("CreateIoBinding", session.pointer)
        self._values: dict[tuple[str, int], _Value] = {}
        self._bound: dict[str, np.ndarray] = {}
        weakref.finalize(self, api.release, "ReleaseIoBinding", self._pointer).atexit = False
        self.native = (NativeCall(api.run_with_binding, (session.pointer, api.run_options, self._pointer), True),)

    def bind(self, kind: str, name: str, array: np.ndarray) -> None:
        """``BindInput`` or ``BindOutput``; of a name always arrays of one shape and type. Raises OrtError."""
        api, at = self._session.api, (f"{kind} {name}", array.ctypes.data)
        value = self._values.get(at)
        if value is None:
            if len(self._values) >= MOST_VALUES:
                self._values.clear()  # the binding has what it uses
            value = self._values[at] = _Value(api, array)
        api.do(kind, self._pointer, name.encode(), value.pointer)
        self._bound[at[0]] = array

    def run(self) -> None:
        """Run from Python. Raises OrtError."""
        self._session.api.do("RunWithBinding", *self.native[0].arguments)

    def error(self, status: int) -> OrtError:
        return OrtError(self._session.api.said(status))


class PythonBinding:
    """The same by the Python module, for what native lanes do not run."""

    native: tuple[NativeCall, ...] = ()

    def __init__(self, session: ort.InferenceSession) -> None:
        self._binding = session.io_binding()
        self._values: dict[str, ort.OrtValue] = {}
        self._run = partial(session.run_with_iobinding, self._binding, _SILENT_RUN)

    def bind(self, kind: str, name: str, array: np.ndarray) -> None:
        """``BindInput`` or ``BindOutput``. Raises what the module raises."""
        value = self._values[f"{kind} {name}"] = ort.OrtValue.ortvalue_from_numpy(array)
        bind = self._binding.bind_ortvalue_input if kind == "BindInput" else self._binding.bind_ortvalue_output
        bind(name, value)

    def run(self) -> None:
        """Run. A method, because whoever calls it must keep alive what is bound. Raises what the module raises."""
        self._run()


def bindings(session: AnySession) -> NativeBinding | PythonBinding:
    """No inputs and outputs yet, for a session."""
    return NativeBinding(session) if isinstance(session, NativeSession) else PythonBinding(session)


class _Value:
    """A tensor over an array's memory."""

    def __init__(self, api: Api, array: np.ndarray) -> None:
        shape = (c_int64 * max(array.ndim, 1))(*array.shape)
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self.pointer = api.make(
            "CreateTensorWithDataAsOrtValue",
            api.memory,
            array.ctypes.data,
            array.nbytes,
            shape,
            array.ndim,
            int(kind),
        )
        weakref.finalize(self, api.release, "ReleaseValue", self.pointer).atexit = False
