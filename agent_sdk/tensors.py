"""Tensors of torch's in a run: read where they stand, and answered with tensors where the outputs stand there too."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Final

import numpy as np

from agent_sdk.errors import InputError

NUMBERS: Final = frozenset({
    "bool", "complex64", "complex128", "float16", "float32", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip
"""Element types that are called the same in torch and in NumPy."""


class TorchTensor:
    """A tensor of torch's, on any device, with the shape and element type that it has as an array.

    Torch is not imported here: where nobody has imported it, nothing is a tensor.

    Args:
        name: of the input or output that it is.
        tensor: without gradients.
        stream: of its device, on which it is made, and tensors like it are to be ready; None where there are none.

    Raises InputError for what no array can hold.
    """

    def __init__(self, name: str, tensor: Any, stream: Any = None) -> None:
        self.name, self.tensor, self.stream = name, tensor, stream
        self.shape = tuple(tensor.shape)
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in NUMBERS or str(tensor.layout) != "torch.strided" or tensor.is_meta:
            raise self._refused("NumPy has no arrays like it")
        self.dtype = np.dtype(name)

    @cached_property
    def array(self) -> np.ndarray:
        """It as an array: by DLPack over its own memory where that is the host's, else copied once."""
        try:
            with self.behind():
                array: np.ndarray = np.from_dlpack(self.tensor.cpu().resolve_conj().resolve_neg())
        except (BufferError, RuntimeError, TypeError, NotImplementedError) as error:
            raise self._refused(str(error)) from error
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)

    def like(self, name: str, tensor: Any) -> TorchTensor:
        """Another one on the same stream."""
        return TorchTensor(name, tensor, self.stream)

    def behind(self) -> AbstractContextManager[object]:
        """What is asked of it inside comes behind what makes it, on whichever thread."""
        cuda = sys.modules["torch"].cuda
        # NOTE: on the caller's own thread it mostly does anyway, and to change streams takes 20 µs.
        mine = self.stream is None or cuda.current_stream(self.tensor.get_device()) == self.stream
        return nullcontext() if mine else cuda.stream(self.stream)

    def _refused(self, why: str) -> InputError:
        what = f"a tensor of {self.tensor.dtype}, {self.tensor.layout}, on {self.tensor.device}"
        return InputError(f"'{self.name}' is {what}: {why}")


def with_tensors(feed: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """A feed with its tensors wrapped, and the device of the first; None without tensors. Raises InputError."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", ())  # another thread may be importing it
    given = {name: value.detach() for name, value in feed.items() if isinstance(value, kind)}
    wrapped = {
        name: TorchTensor(name, tensor, torch.cuda.current_stream(tensor.get_device()) if tensor.is_cuda else None)
        for name, tensor in given.items()
    }
    return ({**feed, **wrapped}, next(iter(given.values())).device) if given else (feed, None)


def on_host(feed: Mapping[str, Any]) -> dict[str, Any]:
    """A feed without tensors, in arrays where they stood. Raises InputError where it is no mapping."""
    if not isinstance(feed, Mapping):
        raise InputError(f"the inputs of a run are to be a mapping by name, not {feed!r:.80}")
    return as_arrays(with_tensors(feed)[0])


def within(tensors: Iterable[TorchTensor], most: float) -> bool:
    """Whether no number in a run's tensors exceeds ``most``, or is none: looked at where they stand.

    The host waits once for each device, and then for all that was made before on the stream of its tensors.
    """
    by_device: dict[Any, list[TorchTensor]] = {}
    for one in tensors:
        if one.tensor.numel():
            by_device.setdefault(one.tensor.device, []).append(one)
    for same in by_device.values():
        with same[0].behind():
            # NOTE: one kernel for each; torch documents that it passes on what is no number.
            ends = sys.modules["torch"].stack([end for one in same for end in one.tensor.aminmax()]).tolist()
        if not all(-most <= end <= most for end in ends):
            return False
    return True


def array_of(given: Any) -> np.ndarray | None:
    """Numbers of a feed as an array, of whichever kind they were given; None for what holds none. Raises InputError."""
    try:
        array = native_array(given)
    except (ValueError, TypeError, RuntimeError):
        return None
    return array if array.dtype.kind in "biufc" else None


def native_array(given: Any) -> np.ndarray:
    """What was given as an array of this machine's byte order. Raises ValueError, TypeError or RuntimeError."""
    array = given.array if isinstance(given, TorchTensor) else np.asarray(given)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_arrays(feed: Mapping[str, Any]) -> dict[str, Any]:
    """A feed with arrays for tensors and for all that has itself made an array. Raises InputError."""
    return {name: _made_array(value) for name, value in feed.items()}


def _made_array(given: Any) -> Any:
    if not isinstance(given, memoryview) and not hasattr(given, "__array__"):
        return given
    try:
        return native_array(given)
    except RuntimeError:  # a value of ONNX Runtime's that is no tensor
        return given


def as_tensors(outputs: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Answers as tensors on a device, on the CPU over the same memory; text and sequences stay as they are."""
    torch: Any = sys.modules["torch"]
    found = {}
    for name, value in outputs.items():
        numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        tensor = value.tensor if isinstance(value, TorchTensor) else torch.from_dlpack(value) if numbers else None
        found[name] = value if tensor is None else tensor.to(device)
    return found
