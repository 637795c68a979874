"""Convolutions and pooling: pads that differ at the two ends, ``auto_pad``, ``ceil_mode``, dilation, any rank.

The output's shape is declared, so every window's place is known: where torch's own padding cannot say it, the input is
padded (or cut, where the last window ends before the input does) so that windows without padding give just that shape.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, Constant, op, other

CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAXIMA = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEANS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@dataclass(frozen=True)
class Window:
    """Where the windows of a convolution or a pooling lie, one number per spatial axis.

    Attributes:
        begins: elements of padding before the first.
        ends: elements of padding behind the last that windows reach; negative where they end before it.
        stated: what the op itself says of its padding behind the last, which counts as input where pads are counted.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    stated: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many spatial axes there are."""
        return len(self.size)

    @property
    def even(self) -> bool:
        """Whether the first padding at both ends gives the same windows, so that torch can be told."""
        return all(
            0 <= begin - end < stride for begin, end, stride in zip(self.begins, self.ends, self.strides, strict=True)
        )

    @property
    def overhangs(self) -> bool:
        """Whether windows reach behind the stated padding (``ceil_mode``), which nobody counts."""
        return any(end > stated for end, stated in zip(self.ends, self.stated, strict=True))

    @property
    def flat(self) -> list[int]:
        """The padding as torch wants it: last axis first."""
        return [side for pair in zip(reversed(self.begins), reversed(self.ends), strict=True) for side in pair]


def window_of(node: Node, size: tuple[int, ...]) -> Window:
    """Where the op's windows lie."""
    rank = len(size)
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    before, after = node.shape()[2:], node.result().shape[2:]
    spans = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(after, strides, size, dilations, strict=True)]
    needed = [span - length for span, length in zip(spans, before, strict=True)]
    auto = node.get("auto_pad", "NOTSET")
    if auto == "VALID":
        begins = stated = (0,) * rank
    elif auto.startswith("SAME"):
        whole = [max(0, one) for one in needed]
        small = tuple(one // 2 for one in whole)
        large = tuple(one - half for one, half in zip(whole, small, strict=True))
        begins, stated = (small, large) if auto == "SAME_UPPER" else (large, small)
    else:
        pads = tuple(node.get("pads") or [0] * (2 * rank))
        begins, stated = pads[:rank], pads[rank:]
    ends = tuple(one - begin for one, begin in zip(needed, begins, strict=True))
    return Window(size, strides, dilations, begins, ends, stated)


@op("Conv")
def _conv(node: Node) -> Call:
    weight = node.shape(1)
    window, groups = window_of(node, weight[2:]), node.get("group", 1)
    if window.rank not in CONVOLUTIONS:
        raise node.refuse(f"convolutions over {window.rank} axes")
    return convolution(window, groups)


def convolution(window: Window, groups: int) -> Call:
    """A convolution of this window."""
    call, strides, dilations = CONVOLUTIONS[window.rank], window.strides, window.dilations
    if window.even:
        begins = window.begins
        return lambda x, w, b=None: call(x, w, b, strides, begins, dilations, groups)
    flat = window.flat
    return lambda x, w, b=None: call(F.pad(x, flat), w, b, strides, 0, dilations, groups)


@other("Conv", "Relu")
def _convolution_relu(node: Node, _: Node) -> Call | None:
    """Both in one call of cuDNN, which takes float16 and float32 images."""
    if not node.cuda or len(node.shape(1)) != 4 or node.dtype() not in ("float16", "float32"):
        return None
    window, groups = window_of(node, node.shape(1)[2:]), node.get("group", 1)
    flat, strides, dilations, even = window.flat, window.strides, window.dilations, window.even
    begins = window.begins if even else (0, 0)

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return torch.cudnn_convolution_relu(x if even else F.pad(x, flat), w, b, strides, begins, dilations, groups)

    return call


def _by_first_choice(call: Call) -> Call:
    """The call with the algorithm that cuDNN itself names first, instead of the one that was fastest timed apart.

    In a graph, where caches are warm, it is often the faster one, and leaves more of the GPU to others.
    NOTE: torch keeps what it found for each answer to whether results must repeat bit for bit; all others say no.
    """

    def run(*tensors: Tensor | None) -> Tensor:
        switches = torch.backends.cudnn
        before = switches.benchmark, switches.deterministic
        switches.benchmark, switches.deterministic = False, True
        try:
            found = call(*tensors)
            assert isinstance(found, Tensor)
            return found
        finally:
            switches.benchmark, switches.deterministic = before

    return run


@other("Conv")
def _first_convolution(node: Node) -> Call | None:
    return _by_first_choice(_conv(node)) if node.cuda else None


@other("Conv", "Relu")
def _first_convolution_relu(node: Node, relu: Node) -> Call | None:
    call = _convolution_relu(node, relu)
    return None if call is None else _by_first_choice(call)


def _is_pointwise(node: Node) -> bool:
    """Whether a convolution is a product of matrices: one element per window, channels last."""
    weight = node.shape(1)
    if len(weight) != 4 or weight[2:] != (1, 1) or node.get("group", 1) != 1 or not node.channels_last:
        return False
    window = window_of(node, (1, 1))
    return not any(window.flat) and set(window.strides) == {1}


@other("Conv")
def _pointwise(node: Node) -> Call | None:
    if not _is_pointwise(node):
        return None

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return F.linear(x.permute(0, 2, 3, 1), w[:, :, 0, 0], b).permute(0, 3, 1, 2)

    return call


@other("Conv", "Relu")
def _pointwise_relu(node: Node, _: Node) -> Call | None:
    if not _is_pointwise(node) or not node.has(2):
        return None

    def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        found = torch._addmm_activation(b, rows, w[:, :, 0, 0].t())
        return found.view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)

    return call


@op("ConvTranspose")
def _transposed(node: Node) -> Call:
    size = node.shape(1)[2:]
    rank, groups = len(size), node.get("group", 1)
    if rank not in TRANSPOSED:
        raise node.refuse(f"convolutions over {rank} axes")
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    extra = tuple(node.get("output_padding") or [0] * rank)
    before, after = node.shape()[2:], node.result().shape[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in zip(before, strides, size, dilations, extra, strict=True)
    ]
    auto = node.get("auto_pad", "NOTSET")
    if node.get("output_shape") or auto.startswith("SAME"):
        # ONNX: the larger half of an odd total stands behind, only for SAME_UPPER before.
        total = [f - n for f, n in zip(full, after, strict=True)]
        begins = [t - t // 2 if auto != "SAME_UPPER" else t // 2 for t in total]
        begins = [max(0, b) if t >= 0 else 0 for b, t in zip(begins, total, strict=True)]
    else:
        begins = list(node.get("pads") or [0] * (2 * rank))[:rank]
    cuts = tuple(slice(begin, begin + length) for begin, length in zip(begins, after, strict=True))
    tail = [max(0, b + n - f) for b, n, f in zip(begins, after, full, strict=True)]
    if any(tail):
        raise node.refuse("an output that is larger than what the input reaches")
    call = TRANSPOSED[rank]
    even = all(f - 2 * b == n for f, b, n in zip(full, begins, after, strict=True))
    grown = tuple(e if e < max(s, d) else 0 for e, s, d in zip(extra, strides, dilations, strict=True))
    if grown != extra:
        raise node.refuse("output padding as large as a stride")

    if even:
        return lambda x, w, b=None: call(x, w, b, strides, begins, extra, groups, dilations)
    return lambda x, w, b=None: call(x, w, b, strides, 0, extra, groups, dilations)[:, :, *cuts]


@op("MaxPool")
def _maximum(node: Node) -> Call:
    if len([name for name in node.outputs if name]) > 1:
        raise node.refuse("the places of the maxima are asked for")
    window = window_of(node, tuple(node.get("kernel_shape")))
    if window.rank not in MAXIMA:
        raise node.refuse(f"pooling over {window.rank} axes")
    call, size, strides, dilations = MAXIMA[window.rank], window.size, window.strides, window.dilations
    if window.even and all(2 * begin <= k for begin, k in zip(window.begins, size, strict=True)):
        begins = window.begins
        return lambda x: call(x, size, strides, begins, dilations)
    flat = window.flat

    def maximum(x: Tensor) -> Tensor:
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        return call(F.pad(x, flat, value=lowest), size, strides, 0, dilations)

    return maximum


@other("MaxPool")
def _maximum_of_windows(node: Node) -> Call | None:
    """One reduction over a view of all windows: with channels last torch's own pooling is slow."""
    if any(node.outputs[1:]) or not node.dtype().startswith("float"):
        return None
    return _of_windows(node, torch.amax, -math.inf)


def _of_windows(node: Node, reduce: Callable[..., Tensor], padding: float) -> Call | None:
    window = window_of(node, tuple(node.get("kernel_shape")))
    if set(window.dilations) != {1}:
        return None
    flat, axes = window.flat, tuple(range(-window.rank, 0))
    last = node.channels_last and window.rank == 2

    def call(x: Tensor) -> Tensor:
        x = F.pad(x, flat, value=padding) if any(flat) else x
        x = x.permute(0, 2, 3, 1) if last else x
        for axis, (size, stride) in enumerate(zip(window.size, window.strides, strict=True), start=1 if last else 2):
            x = x.unfold(axis, size, stride)
        found = reduce(x, axes)
        return found.permute(0, 3, 1, 2) if last else found

    return call


@op("AveragePool")
def _average(node: Node) -> Call:
    window = window_of(node, tuple(node.get("kernel_shape")))
    if window.rank not in MEANS:
        raise node.refuse(f"pooling over {window.rank} axes")
    if set(window.dilations) != {1}:
        return _average_by_convolution(node)
    counted = bool(node.get("count_include_pad", 0))
    call, size, strides, flat = MEANS[window.rank], window.size, window.strides, window.flat
    fits = all(2 * begin <= k for begin, k in zip(window.begins, size, strict=True))
    if fits and window.even and not (counted and window.overhangs):
        begins = window.begins
        return lambda x: call(x, size, strides, begins, False, counted)
    return _counted(node, window, lambda x: call(F.pad(x, flat) if any(flat) else x, size, strides))


@other("AveragePool")
def _average_of_windows(node: Node) -> Call | None:
    """As that of the maximum: the faster where a window is the whole image."""
    call = _of_windows(node, torch.mean, 0.0)
    return call and _counted(node, window_of(node, tuple(node.get("kernel_shape"))), call)


@other("AveragePool")
def _average_by_convolution(node: Node) -> Call:
    """Each channel by itself: torch's own pooling has blocks so large that they leave no room beside them."""
    window, channels = window_of(node, tuple(node.get("kernel_shape"))), node.shape()[1]
    call = convolution(window, channels)
    dtype = getattr(torch, node.held(node.dtype()))
    held = Constant(torch.full((channels, 1, *window.size), 1 / math.prod(window.size), dtype=dtype))
    return _counted(node, window, lambda x: call(x, held.at(x.device)))


def _counted(node: Node, window: Window, mean: Call) -> Call:
    """The mean over all of a window's elements, zeros where it is padded, as that over those that count."""
    scale = _window_scale(node, window, bool(node.get("count_include_pad", 0)))
    if bool((scale == 1).all()):
        return mean
    held = Constant(scale.to(getattr(torch, node.held(node.dtype()))))
    return lambda x: mean(x) * held.at(x.device)


def _window_scale(node: Node, window: Window, counted: bool) -> Tensor:
    """By what to multiply the mean of a window's elements to have that of those that count."""
    before, after = node.shape()[2:], node.result().shape[2:]
    scale = torch.ones((), dtype=torch.float64)
    for axis in range(window.rank):
        first = torch.arange(after[axis]) * window.strides[axis] - window.begins[axis]
        places = first[:, None] + torch.arange(window.size[axis])[None, :] * window.dilations[axis]
        low, high = (-window.begins[axis], before[axis] + window.stated[axis]) if counted else (0, before[axis])
        held = ((places >= low) & (places < high)).sum(1)
        scale = scale[..., None] * (window.size[axis] / held.double())
    return scale


@op("LpPool")
def _lp_pool(node: Node) -> Call:
    window = window_of(node, tuple(node.get("kernel_shape")))
    power, flat = node.get("p", 2), window.flat

    def call(x: Tensor) -> Tensor:
        ones = torch.ones((x.shape[1], 1, *window.size), dtype=x.dtype, device=x.device)
        powers = torch.pow(torch.abs(F.pad(x, flat)), power)
        total = CONVOLUTIONS[window.rank](powers, ones, None, window.strides, 0, window.dilations, x.shape[1])
        return torch.pow(total, 1 / power)

    return call
