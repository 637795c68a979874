"""Tiles of stacks of convolutions and pools against the whole stack, computed by ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hope_schema.tiling import Box, Fetched, Layer, Window, fetched, tiles
from tests import CAMPAIGN

CHANNELS = 2


@dataclass(frozen=True)
class Op:
    """A random layer."""

    kind: str
    layer: Layer
    dilations: tuple[int, int]
    seed: int


def stacks(seed: int) -> list[Op]:
    """Convolutions and pools with windows of 1 to 5, strides of 1 to 3, dilations and padding of up to 4."""
    random = np.random.default_rng(seed)
    height, width = (int(size) for size in random.integers(12, 40, 2))
    found: list[Op] = []
    for _ in range(int(random.integers(1, 5))):
        kind = str(random.choice(["Conv", "Conv", "MaxPool", "AveragePool"]))
        windows, dilations = [], []
        for _ in range(2):
            dilation = int(random.integers(1, 3)) if kind == "Conv" else 1
            extent = (int(random.integers(1, 6)) - 1) * dilation + 1
            before, behind = (int(pad) for pad in random.integers(0, extent, 2))
            windows.append(Window(extent, int(random.integers(1, 4)), before, behind))
            dilations.append(dilation)
        layer = Layer(*windows, height, width)
        made = layer.down.made(height), layer.across.made(width)
        if min(made) < 1:
            break
        found.append(Op(kind, layer, (dilations[0], dilations[1]), int(random.integers(0, 2**31))))
        height, width = made
    return found


def computed(op: Op, image: np.ndarray, pads: tuple[int, int, int, int]) -> np.ndarray:
    """One layer on an image with some padding."""
    down, across = op.layer.down, op.layer.across
    kernel = [(w.extent - 1) // d + 1 for w, d in zip((down, across), op.dilations, strict=True)]
    given = {"kernel_shape": kernel, "strides": [down.stride, across.stride], "pads": list(pads)}
    inputs, weights = ["x"], []
    if op.kind == "Conv":
        values = np.random.default_rng(op.seed).normal(size=(CHANNELS, CHANNELS, *kernel)).astype(np.float32)
        inputs, weights = ["x", "w"], [numpy_helper.from_array(values, "w")]
        given["dilations"] = list(op.dilations)
    node = helper.make_node(op.kind, inputs, ["y"], **given)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "layer", *ends, weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": image})[0]


def tile_of(stack: list[Op], image: np.ndarray, steps: list[Fetched]) -> np.ndarray:
    """What a stack makes of the part of an image that a tile needs."""
    box = steps[0].box
    part = image[:, :, box.top : box.bottom, box.left : box.right]
    for op, step in zip(stack, steps, strict=True):
        assert part.shape[2:] == (step.box.bottom - step.box.top, step.box.right - step.box.left)
        part = computed(op, np.ascontiguousarray(part), step.pads)
    return part


@settings(max_examples=300 if CAMPAIGN else 40, deadline=None)
@given(seed=st.integers(0, 10**6), down=st.integers(1, 4), across=st.integers(1, 4))
def test_tiles_are_the_whole(seed: int, down: int, across: int) -> None:
    """Of any stack, tiled on both axes: side by side, what the tiles make is what the whole stack makes."""
    stack = stacks(seed)
    assume(stack)
    first, last = stack[0].layer, stack[-1].layer
    image = np.random.default_rng(seed).normal(size=(1, CHANNELS, first.height, first.width)).astype(np.float32)
    whole = image
    for op in stack:
        pads = op.layer.down.before, op.layer.across.before, op.layer.down.behind, op.layer.across.behind
        whole = computed(op, whole, pads)
    height, width = last.down.made(last.height), last.across.made(last.width)
    assert whole.shape[2:] == (height, width)
    assume(down <= height and across <= width)
    joined = np.full_like(whole, np.nan)
    for tile in tiles(height, width, down, across):
        try:
            steps = fetched([op.layer for op in stack], tile)
        except ValueError:  # a window that sees nothing but padding: it is said, not computed
            assume(False)
        joined[:, :, tile.top : tile.bottom, tile.left : tile.right] = tile_of(stack, image, steps)
    np.testing.assert_allclose(joined, whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())


def test_padding_is_added_at_the_borders_of_the_image_only() -> None:
    """A 5 x 5 convolution with two rows and columns of padding on 8 x 8, in four tiles: each pads its own two sides."""
    window = Window(5, 1, 2, 2)
    layer = Layer(window, window, 8, 8)
    steps = [fetched([layer], tile)[0] for tile in tiles(8, 8, 2, 2)]
    assert steps == [
        Fetched(Box(0, 6, 0, 6), (2, 2, 0, 0)),
        Fetched(Box(0, 6, 2, 8), (2, 0, 0, 2)),
        Fetched(Box(2, 8, 0, 6), (0, 2, 2, 0)),
        Fetched(Box(2, 8, 2, 8), (0, 0, 2, 2)),
    ]


def test_a_stack_reads_more_the_deeper_it_is() -> None:
    """Two 3 x 3 convolutions: an inner tile of two rows reads four, then six."""
    window = Window(3, 1, 1, 1)
    layer = Layer(window, replace(window, extent=1, before=0, behind=0), 12, 4)
    steps = fetched([layer, layer], Box(4, 6, 0, 4))
    assert [(step.box.top, step.box.bottom) for step in steps] == [(2, 8), (3, 7)]


def test_an_image_is_not_divided_into_more_tiles_than_it_has_rows() -> None:
    """The message says what was asked for."""
    with pytest.raises(ValueError, match=r"3 x 9 cannot be divided into 4 x 1"):
        tiles(3, 9, 4, 1)
