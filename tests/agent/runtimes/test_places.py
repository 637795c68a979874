"""Buffers: every processor of this machine hands out and reads the same memory."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from agent_sdk.errors import UnsupportedOp
from agent_sdk.runtimes.base import Processor
from hope_schema import TensorType
from hope_schema.graph import DType
from tests.agent.runtimes.networks import RUNTIMES, of


@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_buffer_of_any_type_has_its_shape_or_is_refused(
    runtime: str, dtype: DType, processors: list[Processor]
) -> None:
    """What NumPy has no type of its own for is unsupported, although the onnx package registers types for it."""
    processor = of(processors, runtime)[0]
    kind = TensorType(shape=(4, 8), dtype=dtype)
    if dtype == "bfloat16" or dtype.endswith("int4"):
        with pytest.raises(UnsupportedOp, match=dtype):
            processor.place.allocate(kind)
        with pytest.raises(UnsupportedOp, match=dtype):
            processor.place.view(np.zeros(64, np.uint8), kind)
    else:
        assert processor.place.view(processor.place.allocate(kind), kind).shape == (4, 8)


def test_buffers_are_aligned_and_shared(processors: list[Processor]) -> None:
    """Buffers start on a cache line, and processors in host memory look at each other's without a copy."""
    everyone = processors
    for processor in everyone:
        buffer = processor.place.allocate(TensorType(shape=(3, 5), dtype="float32"))
        assert buffer.ctypes.data % 64 == 0
        for other in everyone:
            assert other.place.memory == processor.place.memory
            assert np.shares_memory(other.place.to_host(buffer), buffer)


def test_a_view_may_begin_anywhere(processors: list[Processor]) -> None:
    """Several tensors may stand in one buffer, one behind the other."""
    place = processors[0].place
    both = place.allocate(TensorType(shape=(32,), dtype="uint8"))
    first, second = (place.view(both, TensorType(shape=(2, 2), dtype="float32"), offset) for offset in (0, 16))
    place.from_host(np.ones((2, 2), np.float32), first)
    place.from_host(np.full((2, 2), 2, np.float32), second)
    assert np.array_equal(place.to_host(both).view(np.float32), [1, 1, 1, 1, 2, 2, 2, 2])


def test_transfers_into_a_buffer_copy(processors: list[Processor]) -> None:
    """With a target the tensor is copied there; another type is refused, not converted."""
    first, *_, last = (processor.place for processor in processors)
    source = first.from_host(np.arange(6, dtype=np.float32).reshape(2, 3))
    into = last.allocate(TensorType(shape=(2, 3), dtype="float32"))
    assert last.bring(source, first, into) is into
    assert np.array_equal(into, source)
    with pytest.raises(TypeError):
        last.from_host(np.zeros((2, 3), np.float64), into)
