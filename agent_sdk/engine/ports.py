"""What a run takes and gives: arrays of the shapes and element types that the graph declares."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from agent_sdk.errors import FeedError
from agent_sdk.tensors import TorchTensor, native_array
from hope_schema import TensorType

Given = np.ndarray | TorchTensor
Feeds = dict[str, Given]
Outputs = dict[str, Any]
"""Arrays; tensors where they were made in a place in which inputs stood as such."""
Shape = tuple[int | str | None, ...]
"""Sizes; a symbol's name, or None, where any may come."""
NEW: Mapping[str, np.ndarray] = MappingProxyType({})
"""No arrays of the caller's: every output goes to a new one."""


def ports(types: Mapping[str, TensorType]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {name: (kind.shape, np.dtype(kind.dtype)) for name, kind in types.items()}


def check_feed(wanted: Mapping[str, tuple[Shape, np.dtype[Any]]], inputs: Mapping[str, Any]) -> Feeds:
    """Return the inputs as arrays, tensors as they are. Raises FeedError for wrong names, shapes or element types."""
    feeds = {}
    for name, (shape, dtype) in wanted.items():
        if name not in inputs:
            others = ", ".join(map(str, inputs)) or "none"
            raise FeedError(f"input '{name}' ({dtype}{_shown(shape)}) is missing; given: {others}")
        given = inputs[name]
        array: Given = given if isinstance(given, TorchTensor) else _array(name, given, dtype)
        fits = array.shape == shape or _fits(array.shape, shape)
        if not fits or (array.dtype is not dtype and array.dtype != dtype):
            raise FeedError(
                f"input '{name}' is {array.dtype}{_shown(array.shape)}, the model wants {dtype}{_shown(shape)}"
            )
        feeds[name] = array
    if len(inputs) != len(feeds):
        unknown = next(name for name in inputs if name not in feeds)
        raise FeedError(f"the model has no input '{unknown}'; it has {', '.join(feeds) or 'none'}")
    return feeds


def _array(name: str, given: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """What was given as an array; raises FeedError where it is none.

    A list has no element type of its own: it is cast to the input's, as ONNX Runtime does, to whom 1.5 is 1 of int64.
    """
    try:
        return np.array(given, dtype) if type(given) is list else native_array(given)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise FeedError(f"input '{name}' is no array of {dtype}: {error}") from error


def shape_of(given: Any) -> tuple[int, ...]:
    """The shape of what was given; that of a scalar for what is no array, as a sequence of several shapes."""
    try:
        return np.shape(given)
    except ValueError:
        return ()


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        size == own or not isinstance(own, int) for size, own in zip(shape, wanted, strict=True)
    )


def _shown(shape: Shape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def check_output(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], array: np.ndarray) -> None:
    """Raise FeedError where an output of this shape and type cannot be written into an array."""
    if array.shape != shape or array.dtype != dtype or not array.flags.writeable:
        found = f"{array.dtype}{list(array.shape)}{'' if array.flags.writeable else ', read-only'}"
        raise FeedError(f"output '{name}' is {dtype}{list(shape)}; the array given for it is {found}")
