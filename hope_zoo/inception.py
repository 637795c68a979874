"""Inception-v3 (Szegedy et al. 2016) and Inception-v4 (Szegedy et al. 2017), op for op as in TF-Slim and the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hope_zoo.network import Network, Size
from hope_zoo.weights import Topology

CLASSES = 1001
"""Classes of TF-Slim's ImageNet: a thousand and one for background."""


@dataclass(frozen=True)
class C:
    """One convolution of a branch: output channels, kernel, stride and padding."""

    channels: int
    kernel: int | Size = 1
    stride: int = 1
    same: bool = True

    @property
    def label(self) -> str:
        """The kernel as TF-Slim writes it in names."""
        height, width = (self.kernel, self.kernel) if isinstance(self.kernel, int) else self.kernel
        return f"{height}x{width}"


def _chain(net: Network, x: str, scope: str, convs: Sequence[C], first: int = 0) -> str:
    for index, conv in enumerate(convs, first):
        name = f"{scope}/Conv2d_0{'abcdefg'[index]}_{conv.label}"
        x = net.conv_relu(x, conv.channels, conv.kernel, name, stride=conv.stride, same=conv.same)
    return x


def _pooled(net: Network, x: str, scope: str, channels: int) -> str:
    """The branch that all modules of one resolution end with: 3x3 mean, then 1x1."""
    return _chain(net, net.avg_pool(x, 3, f"{scope}/AvgPool_0a_3x3"), scope, [C(channels)], first=1)


def _module(net: Network, x: str, scope: str, branches: Sequence[Sequence[C]], pooled: int) -> str:
    """Branches of convolutions beside a pooled one; a branch's name counts from 0."""
    ends = [_chain(net, x, f"{scope}/Branch_{index}", convs) for index, convs in enumerate(branches)]
    ends.append(_pooled(net, x, f"{scope}/Branch_{len(branches)}", pooled))
    return net.concat(ends, f"{scope}/concat")


def _reduction(net: Network, x: str, scope: str, branches: Sequence[Sequence[C]]) -> str:
    """Branches that halve the resolution, beside a 3x3 maximum."""
    ends = [_chain(net, x, f"{scope}/Branch_{index}", convs) for index, convs in enumerate(branches)]
    ends.append(net.max_pool(x, 3, f"{scope}/Branch_{len(branches)}/MaxPool_1a_3x3", stride=2, same=False))
    return net.concat(ends, f"{scope}/concat")


def _fork(net: Network, x: str, scope: str, channels: int, first: int) -> str:
    """A 1x3 and a 3x1 convolution of the same tensor, joined."""
    flat = _chain(net, x, scope, [C(channels, (1, 3))], first)
    tall = _chain(net, x, scope, [C(channels, (3, 1))], first + 1)
    return net.concat([flat, tall], f"{scope}/concat")


def _wide(net: Network, x: str, scope: str, plain: int, stem: int, deep: Sequence[C], fork: int, pooled: int) -> str:
    """The 8x8 module, whose second and third branches end in forks."""
    ends = [
        _chain(net, x, f"{scope}/Branch_0", [C(plain)]),
        _fork(net, _chain(net, x, f"{scope}/Branch_1", [C(stem)]), f"{scope}/Branch_1", fork, 1),
        _fork(net, _chain(net, x, f"{scope}/Branch_2", deep), f"{scope}/Branch_2", fork, len(deep)),
        _pooled(net, x, f"{scope}/Branch_3", pooled),
    ]
    return net.concat(ends, f"{scope}/concat")


def inception_v3() -> Topology:
    """Return Inception-v3: 299 x 299, 130 ops as phones count them (a convolution with its rectifier is one)."""
    net = Network("inception_v3", {"input": (1, 3, 299, 299)})
    x = net.conv_relu("input", 32, 3, "Conv2d_1a_3x3", stride=2, same=False)
    x = net.conv_relu(x, 32, 3, "Conv2d_2a_3x3", same=False)
    x = net.conv_relu(x, 64, 3, "Conv2d_2b_3x3")
    x = net.max_pool(x, 3, "MaxPool_3a_3x3", stride=2, same=False)
    x = net.conv_relu(x, 80, 1, "Conv2d_3b_1x1")
    x = net.conv_relu(x, 192, 3, "Conv2d_4a_3x3", same=False)
    x = net.max_pool(x, 3, "MaxPool_5a_3x3", stride=2, same=False)
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        x = _module(net, x, f"Mixed_5{letter}", [[C(64)], [C(48), C(64, 5)], [C(64), C(96, 3), C(96, 3)]], pooled)
    x = _reduction(net, x, "Mixed_6a", [[C(384, 3, 2, same=False)], [C(64), C(96, 3), C(96, 3, 2, same=False)]])
    for letter, n in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        long = [C(n), C(n, (7, 1)), C(n, (1, 7)), C(n, (7, 1)), C(192, (1, 7))]
        x = _module(net, x, f"Mixed_6{letter}", [[C(192)], [C(n), C(n, (1, 7)), C(192, (7, 1))], long], 192)
    x = _reduction(
        net,
        x,
        "Mixed_7a",
        [
            [C(192), C(320, 3, 2, same=False)],
            [C(192), C(192, (1, 7)), C(192, (7, 1)), C(192, 3, 2, same=False)],
        ],
    )
    for letter in "bc":
        x = _wide(net, x, f"Mixed_7{letter}", 320, 384, [C(448), C(384, 3)], 384, 192)
    x = net.avg_pool(x, 8, "Logits/AvgPool_1a_8x8", same=False)
    x = net.conv(x, CLASSES, 1, "Logits/Conv2d_1c_1x1")
    shape = net.constant("Logits/SpatialSqueeze/shape", [1, CLASSES])
    x = net.op("Reshape", [x, shape], "Logits/SpatialSqueeze", (1, CLASSES))
    return net.topology(net.op("Softmax", [x], "Predictions/Softmax", (1, CLASSES), axis=1))


def inception_v4() -> Topology:
    """Return Inception-v4: 299 x 299, 207 ops as phones count them."""
    net = Network("inception_v4", {"input": (1, 3, 299, 299)})
    x = net.conv_relu("input", 32, 3, "Conv2d_1a_3x3", stride=2, same=False)
    x = net.conv_relu(x, 32, 3, "Conv2d_2a_3x3", same=False)
    x = net.conv_relu(x, 64, 3, "Conv2d_2b_3x3")
    pool = net.max_pool(x, 3, "Mixed_3a/Branch_0/MaxPool_0a_3x3", stride=2, same=False)
    x = net.concat(
        [pool, net.conv_relu(x, 96, 3, "Mixed_3a/Branch_1/Conv2d_0a_3x3", stride=2, same=False)], "Mixed_3a/concat"
    )
    short = _chain(net, x, "Mixed_4a/Branch_0", [C(64), C(96, 3, same=False)])
    long = _chain(net, x, "Mixed_4a/Branch_1", [C(64), C(64, (1, 7)), C(64, (7, 1)), C(96, 3, same=False)])
    x = net.concat([short, long], "Mixed_4a/concat")
    x = _reduction(net, x, "Mixed_5a", [[C(192, 3, 2, same=False)]])
    for letter in "bcde":
        x = _module(net, x, f"Mixed_5{letter}", [[C(96)], [C(64), C(96, 3)], [C(64), C(96, 3), C(96, 3)]], 96)
    x = _reduction(net, x, "Mixed_6a", [[C(384, 3, 2, same=False)], [C(192), C(224, 3), C(256, 3, 2, same=False)]])
    for letter in "bcdefgh":
        long_branch = [C(192), C(192, (7, 1)), C(224, (1, 7)), C(224, (7, 1)), C(256, (1, 7))]
        branches = [[C(384)], [C(192), C(224, (1, 7)), C(256, (7, 1))], long_branch]
        x = _module(net, x, f"Mixed_6{letter}", branches, 128)
    x = _reduction(
        net,
        x,
        "Mixed_7a",
        [
            [C(192), C(192, 3, 2, same=False)],
            [C(256), C(256, (1, 7)), C(320, (7, 1)), C(320, 3, 2, same=False)],
        ],
    )
    for letter in "bcd":
        x = _wide(net, x, f"Mixed_7{letter}", 256, 384, [C(384), C(448, (3, 1)), C(512, (1, 3))], 256, 256)
    return net.topology(net.classify(x, CLASSES, "Logits"))
