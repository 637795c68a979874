"""Triton's language as far as our kernels speak it, carried out by NumPy: a program after the other, in any order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Pointer:
    """Elements of a tensor's memory, by their places."""

    memory: np.ndarray
    at: np.ndarray | int = 0

    def __add__(self, more: np.ndarray | int) -> Pointer:
        return Pointer(self.memory, self.at + more)


def _places(pointer: Pointer, mask: np.ndarray) -> np.ndarray:
    """Where it points, as far as the mask says so: a place outside the memory is an error."""
    at, mask = np.broadcast_arrays(pointer.at, mask)
    assert not ((at < 0) | (at >= pointer.memory.size))[mask].any(), "outside the tensor"
    return np.where(mask, at, 0)


def _load(pointer: Pointer, *, mask: np.ndarray, other: float) -> np.ndarray:
    return np.where(mask, pointer.memory[_places(pointer, mask)], pointer.memory.dtype.type(other))


def _store(pointer: Pointer, value: np.ndarray, *, mask: np.ndarray) -> None:
    at, value = np.broadcast_arrays(_places(pointer, mask), value)
    with np.errstate(over="ignore"):
        pointer.memory[at[mask]] = value[mask].astype(pointer.memory.dtype)


def stand_in(seed: int) -> dict[str, ModuleType]:
    """The package and its language, as modules by name."""
    package, language, order = ModuleType("triton"), ModuleType("triton.language"), random.Random(seed)
    program: list[int] = []

    def jit(do_not_specialize: object = ()) -> Callable[[Callable[..., None]], Any]:
        def of(kernel: Callable[..., None]) -> Any:
            def on(grid: tuple[int, ...]) -> Callable[..., None]:
                def launch(*given: Any, num_stages: int = 3) -> None:
                    given = tuple(Pointer(_memory(one)) if isinstance(one, torch.Tensor) else one for one in given)
                    programs = list(itertools.product(*(range(count) for count in grid)))
                    order.shuffle(programs)
                    for program[:] in programs:
                        kernel(*given)

                return launch

            return _Launched(on)

        return of

    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    def dot(a: np.ndarray, b: np.ndarray, found: np.ndarray) -> np.ndarray:
        return found + a.astype(np.float32) @ b.astype(np.float32)

    for name, value in {
        "program_id": lambda axis: program[axis],
        "arange": np.arange,
        "zeros": np.zeros,
        "float32": np.float32,
        "cdiv": cdiv,
        "minimum": min,
        "maximum": lambda a, b, propagate_nan: np.maximum(a, b),
        "PropagateNan": SimpleNamespace(ALL=None),
        "cast": lambda value, dtype: value.astype(dtype),
        "static_range": range,
        "constexpr": int,
        "dot": dot,
        "load": _load,
        "store": _store,
    }.items():
        setattr(language, name, value)
    package.jit, package.cdiv, package.language = jit, cdiv, language  # type: ignore[attr-defined]
    return {"triton": package, "triton.language": language}


class _Launched:
    def __init__(self, on: Callable[[tuple[int, ...]], Callable[..., None]]) -> None:
        self._on = on

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._on(grid)


def _memory(tensor: torch.Tensor) -> np.ndarray:
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).numpy()
