"""What stays bound from run to run, by the names that ONNX Runtime's users know.

What lies in the host's memory in a type that NumPy has is read and written where it stands, by whoever answers. All
else (another device, another type) is ONNX Runtime's: the same calls are made on a binding of its own session.
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

from agent_sdk.errors import InputError
from agent_sdk.journey.plans import Plans
from agent_sdk.model.ports import HELD, Port

HOST: Final = "cpu"
"""What ONNX Runtime calls the host's memory."""


class BindingError(InputError, RuntimeError):
    """What cannot be bound; ONNX Runtime raises a RuntimeError there."""


@dataclass(frozen=True)
class _Bound:
    """How an input or output is bound.

    Attributes:
        repeat: makes the same call on a binding of ONNX Runtime's.
        on_host: whether it lies in the host's memory, in a type that NumPy has.
        array: where it lies there; None for an output that goes to new memory.
        value: the OrtValue that was bound, if it was one.
    """

    repeat: Callable[[ort.IOBinding], None]
    on_host: bool
    array: np.ndarray | None = None
    value: ort.OrtValue | None = None


class IOBinding(ort.IOBinding):  # type: ignore[misc]  # the package has no types
    """What one caller's runs read and write; made by ``Session.io_binding``, used by one thread at a time.

    What is bound is read as it is at each run. An output goes to the memory that is bound for it, or to new memory
    each time.
    """

    def __init__(self, plans: Plans) -> None:
        self.plans = plans
        self._inputs: dict[str, _Bound] = {}
        self._outputs: dict[str, _Bound] = {}
        self._made: dict[str, Any] = {}
        self._theirs: ort.IOBinding | None = None

    # What runs read

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Read an input from this array from now on. Raises BindingError."""
        if not isinstance(arr_on_cpu, np.ndarray):
            raise BindingError(f"input '{name}' is bound to a {type(arr_on_cpu).__name__}, not to an array of NumPy's")
        self._bind_input(name, methodcaller("bind_cpu_input", name, arr_on_cpu), arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read an input from this memory from now on; the caller keeps it. Raises BindingError."""
        repeat = methodcaller("bind_input", name, device_type, device_id, element_type, shape, buffer_ptr)
        self._bind_input(name, repeat, _at(buffer_ptr, device_type, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Read an input from this value from now on. Raises BindingError."""
        self._bind_input(name, methodcaller("bind_ortvalue_input", name, ortvalue), host_array(ortvalue))

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def synchronize_inputs(self) -> None:
        """Wait for copies under way; there are none on the host."""
        if self._theirs is not None:
            self._theirs.synchronize_inputs()

    # What runs write

    def bind_output(
        self,
        name: str,
        device_type: str = HOST,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Want an output, in new memory each time, or in this memory, which the caller keeps.

        Raises BindingError, or InputError for memory without a type and a shape.
        """
        repeat = methodcaller("bind_output", name, device_type, device_id, element_type, shape, buffer_ptr)
        if buffer_ptr is None:
            bound = _Bound(repeat, device_type == HOST)
        elif element_type is None or shape is None:
            raise InputError(f"output '{name}' is bound to memory: `element_type` and `shape` are to be given too")
        else:
            array = _at(buffer_ptr, device_type, element_type, shape)
            bound = _Bound(repeat, array is not None, array)
        self._bind_output(name, bound)

    def bind_ortvalue_output(self, name: str, ortvalue: ort.OrtValue) -> None:
        """Want an output in this value. Raises BindingError."""
        array = host_array(ortvalue)
        repeat = methodcaller("bind_ortvalue_output", name, ortvalue)
        self._bind_output(name, _Bound(repeat, array is not None, array, ortvalue))

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def synchronize_outputs(self) -> None:
        """Wait for copies under way; there are none on the host."""
        if self._theirs is not None:
            self._theirs.synchronize_outputs()

    def _bind_input(self, name: str, repeat: Callable[[ort.IOBinding], None], array: np.ndarray | None) -> None:
        _refuse_unknown("input", name, self.plans.inputs)
        self._inputs[name] = _Bound(repeat, array is not None, array)

    def _bind_output(self, name: str, bound: _Bound) -> None:
        _refuse_unknown("output", name, self.plans.outputs)
        self._outputs[name] = bound

    # A run, and what it made

    def run(self) -> bool:
        """Have plans answer; whether they can: all that is bound lies in the host's memory, in types that NumPy has.

        Raises BindingError where no output is wanted, or like ``Session.run``.
        """
        if not all(bound.on_host for bound in (*self._inputs.values(), *self._outputs.values())):
            return False
        if not self._outputs:
            raise BindingError("no output is bound: at least one should be")
        feed = {name: bound.array for name, bound in self._inputs.items()}
        into = {name: bound.array for name, bound in self._outputs.items() if bound.array is not None}
        made = self.plans.run(feed, into=into)
        if not all(is_numeric(made[name]) for name in self._outputs):
            return False
        self._made, self._theirs = made, None
        return True

    def run_on(self, session: ort.InferenceSession, run_options: ort.RunOptions | None = None) -> None:
        """Bind all of it for ONNX Runtime's own session, and run that. Raises what that raises."""
        theirs = session.io_binding()
        for bound in (*self._inputs.values(), *self._outputs.values()):
            bound.repeat(theirs)
        session.run_with_iobinding(theirs, run_options)
        self._made, self._theirs = {}, theirs

    def get_outputs(self) -> list[ort.OrtValue]:
        """What the last run made, in the order in which outputs were bound, where it stands."""
        if self._theirs is not None:
            return list(self._theirs.get_outputs())
        return [_made(bound, self._made[name]) for name, bound in self._outputs.items() if name in self._made]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The same as ONNX Runtime's own list."""
        if self._theirs is not None:
            return self._theirs.get_outputs_as_ortvaluevector()
        values = OrtValueVector()
        for value in self.get_outputs():
            values.push_back(value._get_c_value())
        return values

    def copy_outputs_to_cpu(self) -> list[Any]:
        """What the last run made, in arrays that no later run overwrites."""
        if self._theirs is not None:
            return list(self._theirs.copy_outputs_to_cpu())
        return [
            self._made[name] if bound.array is None else np.array(self._made[name])
            for name, bound in self._outputs.items()
            if name in self._made
        ]


def host_array(value: ort.OrtValue) -> np.ndarray | None:
    """A tensor as an array over its own memory; None where that is not the host's, or NumPy lacks its type."""
    if not value.is_tensor() or value.device_name() != HOST:
        return None
    kind = HELD.get(value.data_type())
    return None if kind is None else _at(value.data_ptr(), HOST, kind, value.shape())


def _made(bound: _Bound, array: np.ndarray) -> ort.OrtValue:
    """What a run made of an output: the value that was bound, one over the caller's memory, or a new one."""
    if bound.value is not None:
        return bound.value
    return own_value(array) if bound.array is None else ort.OrtValue.ortvalue_from_numpy(bound.array)


def own_value(array: np.ndarray) -> ort.OrtValue:
    """A value of ONNX Runtime's with a copy of a tensor.

    It has memory of its own: arrays that are made of a value do not keep alive what it was made of.
    """
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type)
    memory = host_array(value)
    assert memory is not None
    memory[...] = array
    return value


def is_numeric(made: object) -> bool:
    return isinstance(made, np.ndarray) and made.dtype in HELD.values()


def _numpy_type(element_type: Any) -> np.dtype[Any] | None:
    """NumPy's type for what ONNX Runtime takes: a type of NumPy's, or ONNX's number of one; None where it has none."""
    with suppress(KeyError, TypeError):
        number = isinstance(element_type, int)
        kind = onnx.helper.tensor_dtype_to_np_dtype(element_type) if number else np.dtype(element_type)
        return kind if kind in HELD.values() else None
    return None


def _refuse_unknown(what: str, name: str, ports: Iterable[Port]) -> None:
    known = [port.name for port in ports]
    if name not in known:
        raise BindingError(f"there is no {what} '{name}'; {what}s: {', '.join(known)}")


def _at(pointer: int, device: str, element_type: Any, shape: Sequence[int]) -> np.ndarray | None:
    """The array that lies at an address; None where that is not the host's, or NumPy lacks its type."""
    kind = _numpy_type(element_type)
    if device != HOST or kind is None:
        return None
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return np.empty(tuple(shape), kind)
    memory = memoryview((ctypes.c_char * size).from_address(pointer)).cast("B")
    return np.ndarray(tuple(shape), kind, memory)
