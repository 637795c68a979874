"""Tensors of torch's at the door of a session: read where they stand, by DLPack, and answered with tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_sdk.errors import InputError


def as_arrays(feed: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """A feed's tensors as arrays over the same memory, and the device that answers go back to; None without tensors.

    What lies on another device than the CPU is copied from there. Raises InputError for what no array can hold.
    """
    torch: Any = sys.modules.get("torch")  # where nobody has imported it, nothing is a tensor
    if torch is None:
        return feed, None
    tensors = {name: value for name, value in feed.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return feed, None
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    return {**feed, **arrays}, next(iter(tensors.values())).device


def as_tensors(outputs: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Answers as tensors on a device, on the CPU over the same memory; text and sequences stay as they are."""
    torch: Any = sys.modules["torch"]
    return {
        name: torch.from_dlpack(value).to(device)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        else value
        for name, value in outputs.items()
    }


def _array(name: str, tensor: Any) -> np.ndarray:
    try:
        array: np.ndarray = np.from_dlpack(tensor.detach().cpu().resolve_conj().resolve_neg())
    except (BufferError, RuntimeError, TypeError, NotImplementedError) as error:
        what = f"a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise InputError(f"input '{name}' is {what}: no array can hold it ({error})") from error
    return array
