"""The ONNX package's own tests of single operators, made in seconds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase as Case
from onnx.reference.ops import op_pool_common


def pool(
    padded: np.ndarray,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: int = 0,
    p: int = 1,
) -> np.ndarray:
    """The package's reference for pools, over all windows at once: its loop over them takes four fifths of the time."""
    rank = len(kernel)
    values = padded.astype(np.float64)
    for axis in range(rank):  # beyond the padding that was asked for there is nothing to count
        end = x_shape[2 + axis] + (0 if pads is None else pads[axis] + pads[rank + axis])
        values.swapaxes(2 + axis, -1)[..., end:] = np.nan
    dilations = [1] * rank if dilations is None else dilations
    reach = [1 + (size - 1) * step for size, step in zip(kernel, dilations, strict=True)]
    windows = sliding_window_view(values, reach, axis=tuple(range(2, 2 + rank)))
    starts = [slice(None, None, step) for step in strides or [1] * rank]
    windows = windows[(..., *starts, *(slice(None, None, step) for step in dilations))]
    windows = windows[(..., *(slice(size) for size in out_shape), *[slice(None)] * rank)]
    inner = tuple(range(-rank, 0))
    if pooling_type == "LPPOOL":
        made = np.nansum(np.abs(windows) ** p, axis=inner) ** (1 / p)
    else:
        made = (np.nanmax if pooling_type == "MAX" else np.nanmean)(windows, axis=inner)
    return made.astype(padded.dtype)


@cache
def operators() -> list[str]:
    """All modules of tests, one per operator or a few."""
    return sorted(module.name for module in walk_packages(node.__path__, f"{node.__name__}."))


@cache
def _made(operator: str) -> list[Case]:
    """The tests of one module: importing it makes them."""
    before = len(node._NodeTestCases)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(op_pool_common, "pool", pool)
        import_module(operator)
    return node._NodeTestCases[before:]


def cases(every: int = 1) -> list[Case]:
    """The tests of one module in ``every``, by name."""
    return sorted((case for name in operators()[::every] for case in _made(name)), key=lambda case: str(case.name))
