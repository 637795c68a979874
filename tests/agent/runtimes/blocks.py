"""ONNX Runtime's layout in blocks of channels, by NumPy: an oracle for what changes layouts."""

from __future__ import annotations

import numpy as np

from agent_sdk.runtimes.ort.cut import block_size


def plain(array: np.ndarray, channels: int) -> np.ndarray:
    """A tensor in blocks of channels as a plain one."""
    batch, padded, *area = array.shape
    blocks = array.reshape(batch, padded // block_size(), *area, block_size())
    return np.ascontiguousarray(np.moveaxis(blocks, -1, 2).reshape(batch, padded, *area)[:, :channels])


def blocked(array: np.ndarray) -> np.ndarray:
    """A plain tensor in blocks of channels, the last of which is padded with zeros."""
    batch, channels, *area = array.shape
    padded = -(-channels // block_size()) * block_size()
    full = np.pad(array, [(0, 0), (0, padded - channels), *((0, 0) for _ in area)])
    blocks = np.moveaxis(full.reshape(batch, padded // block_size(), block_size(), *area), 2, -1)
    return np.ascontiguousarray(blocks.reshape(batch, padded, *area))
