"""HRNet-W18 for classification (Wang et al. 2020): branches of four resolutions, joined again and again."""

from __future__ import annotations

from collections.abc import Sequence

from hope_zoo.network import Network
from hope_zoo.weights import Topology

WIDTHS = (18, 36, 72, 144)
"""Channels of the branches, from the highest resolution to the lowest."""
STAGES = (1, 4, 3)
"""Modules of the stages with two, three and four branches."""
BLOCKS = 4
"""Blocks of a branch in a module."""
HEAD = (32, 64, 128, 256)
"""Inner channels of the bottlenecks in which the branches end."""
CLASSES = 1000


def _basic(net: Network, x: str, channels: int, scope: str) -> str:
    """Two 3x3 convolutions beside a shortcut."""
    made = net.conv(net.conv_relu(x, channels, 3, f"{scope}/a"), channels, 3, f"{scope}/b")
    return net.relu(net.add(made, x, f"{scope}/sum"), f"{scope}/Relu")


def _bottleneck(net: Network, x: str, inner: int, scope: str) -> str:
    """Convolutions of 1x1, 3x3 and 1x1 to four times as many channels, beside a shortcut."""
    made = net.conv_relu(net.conv_relu(x, inner, 1, f"{scope}/a"), inner, 3, f"{scope}/b")
    made = net.conv(made, 4 * inner, 1, f"{scope}/c")
    kept = x if net.shape[x][1] == 4 * inner else net.conv(x, 4 * inner, 1, f"{scope}/shortcut")
    return net.relu(net.add(made, kept, f"{scope}/sum"), f"{scope}/Relu")


def _down(net: Network, x: str, channels: int, steps: int, scope: str) -> str:
    """As many 3x3 convolutions as the resolution is halved; the last one makes the channels, and has no rectifier."""
    for step in range(1, steps):
        x = net.conv_relu(x, net.shape[x][1], 3, f"{scope}/{step}", stride=2)
    return net.conv(x, channels, 3, f"{scope}/{steps}", stride=2)


def _up(net: Network, x: str, channels: int, steps: int, scope: str) -> str:
    """A 1x1 convolution, and every pixel as a square of equal ones."""
    made, factor = net.conv(x, channels, 1, f"{scope}/conv"), 2**steps
    _, _, height, width = net.shape[made]
    scales = net.constant(f"{scope}/scales", (1.0, 1.0, float(factor), float(factor)))
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    shape = (1, channels, factor * height, factor * width)
    return net.op("Resize", [made, "", scales], f"{scope}/Resize", shape, **attributes)


def _fused(net: Network, branches: Sequence[str], scope: str) -> list[str]:
    """Every branch plus all others, brought to its resolution."""
    found = []
    for own, x in enumerate(branches):
        total = x
        for other, y in enumerate(branches):
            name, channels = f"{scope}/{other}to{own}", net.shape[x][1]
            if other != own:
                bring = _down if other < own else _up
                total = net.add(total, bring(net, y, channels, abs(own - other), name), f"{name}/sum")
        found.append(net.relu(total, f"{scope}/{own}/Relu"))
    return found


def hrnet_w18() -> Topology:
    """Return HRNet-W18: a stem at a quarter of 224 x 224, eight modules of two to four branches, one classifier."""
    net = Network("hrnet_w18", {"input": (1, 3, 224, 224)})
    x = net.conv_relu(net.conv_relu("input", 64, 3, "stem/a", stride=2), 64, 3, "stem/b", stride=2)
    for block in range(4):
        x = _bottleneck(net, x, 64, f"stage1/{block}")
    branches = [net.conv_relu(x, WIDTHS[0], 3, "transition2/0")]
    for stage, modules in enumerate(STAGES, 2):
        lowest = x if stage == 2 else branches[-1]
        added = net.conv_relu(lowest, WIDTHS[stage - 1], 3, f"transition{stage}/{stage - 1}", stride=2)
        branches = [*branches, added]
        for module in range(modules):
            scope = f"stage{stage}/{module}"
            for index, channels in enumerate(WIDTHS[:stage]):
                for block in range(BLOCKS):
                    branches[index] = _basic(net, branches[index], channels, f"{scope}/{index}/{block}")
            branches = _fused(net, branches, f"{scope}/fuse")
    y, *lower = (_bottleneck(net, one, HEAD[index], f"head/{index}") for index, one in enumerate(branches))
    for index, one in enumerate(lower, 1):
        down = net.relu(_down(net, y, net.shape[one][1], 1, f"head/{index}/down"), f"head/{index}/down/Relu")
        y = net.add(one, down, f"head/{index}/joined")
    return net.topology(net.classify(net.conv_relu(y, 2048, 1, "head/final"), CLASSES, "logits"))
