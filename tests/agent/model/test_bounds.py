"""Whether values are ordinary: the native look at an array beside one at each of its elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk import native
from agent_sdk.model import bounds
from agent_sdk.model.bounds import ORDINARY, ordinary

EDGE = np.float32(ORDINARY)
ODD = [EDGE, -EDGE, np.nextafter(EDGE, np.float32(np.inf)), np.nextafter(-EDGE, np.float32(-np.inf))]
ODD += [np.float32(np.inf), np.float32(-np.inf), np.float32(np.nan), np.float32(65504), np.float32(-65520)]
ODD += [np.float32(0), np.float32(-0.0), np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max]


def one_by_one(array: np.ndarray) -> bool:
    """The same, of each element as Python has it."""
    return array.dtype.kind != "f" or all(abs(value) <= ORDINARY for value in array.reshape(-1).tolist())


@pytest.mark.parametrize("lanes", ["", "sequence"])
@given(data=st.data(), dtype=st.sampled_from(["f2", "f4", "f8", ">f4", "i4", "?"]))
def test_an_array_is_ordinary_where_each_of_its_elements_is(lanes: str, data: st.DataObject, dtype: str) -> None:
    """Of any type, length, alignment and order in memory; with the native library and without."""
    count, skipped, step = (data.draw(st.integers(*ends)) for ends in ((0, 200), (0, 17), (1, 2)))
    array = np.random.default_rng(count).standard_normal(skipped + step * count).astype(dtype)[skipped::step]
    for place in data.draw(st.lists(st.integers(0, count - 1), max_size=2)) if count else ():
        with np.errstate(over="ignore", invalid="ignore"):
            array[place] = np.asarray(data.draw(st.sampled_from(ODD))).astype(dtype)
    array.flags.writeable = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.LANES_VARIABLE, lanes)
        bounds._library.cache_clear()
        assert (bounds._library() is None) == bool(lanes)
        found = ordinary(array)
    bounds._library.cache_clear()
    assert found == one_by_one(array)
