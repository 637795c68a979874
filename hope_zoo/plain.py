"""Networks of D3's evaluation that are convolutions one behind the other, with or without shortcuts: VGG-16 (Simonyan
and Zisserman 2015), ResNet-18 (He et al. 2016), Darknet-53 (Redmon and Farhadi 2018).
"""

from __future__ import annotations

from hope_zoo.network import Network
from hope_zoo.weights import Topology

CLASSES = 1000
PICTURE = (1, 3, 224, 224)


def vgg16() -> Topology:
    """Return VGG-16: 13 convolutions of 3x3 in five stages, and three fully connected layers."""
    net = Network("vgg16", {"input": PICTURE})
    x = "input"
    for stage, (channels, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for index in range(1, count + 1):
            x = net.conv_relu(x, channels, 3, f"conv{stage}_{index}")
        x = net.max_pool(x, 2, f"pool{stage}", stride=2, same=False)
    features = net.shape[x][1] * net.shape[x][2] * net.shape[x][3]
    x = net.op("Flatten", [x], "flatten", (1, features), axis=1)
    for index, (wide, made) in enumerate(((features, 4096), (4096, 4096), (4096, CLASSES)), 6):
        parts = [net.parameter(f"fc{index}/weights", (wide, made)), net.parameter(f"fc{index}/bias", (made,))]
        x = net.op("Gemm", [x, *parts], f"fc{index}", (1, made))
        x = net.relu(x, f"fc{index}/Relu") if made != CLASSES else x
    return net.topology(net.op("Softmax", [x], "predictions", (1, CLASSES), axis=1))


def resnet18() -> Topology:
    """Return ResNet-18: four stages of two blocks of two convolutions, each with a shortcut."""
    net = Network("resnet18", {"input": PICTURE})
    x = net.max_pool(net.conv_relu("input", 64, 7, "conv1", stride=2), 3, "pool1", stride=2)
    for stage, channels in enumerate((64, 128, 256, 512), 2):
        for block in (1, 2):
            scope, stride = f"conv{stage}_{block}", 2 if block == 1 and stage > 2 else 1
            made = net.conv_relu(x, channels, 3, f"{scope}/a", stride=stride)
            made = net.conv(made, channels, 3, f"{scope}/b")
            kept = net.conv(x, channels, 1, f"{scope}/shortcut", stride=stride) if stride > 1 else x
            x = net.relu(net.add(made, kept, f"{scope}/sum"), f"{scope}/Relu")
    return net.topology(net.classify(x, CLASSES, "logits"))


def darknet53() -> Topology:
    """Return Darknet-53: 52 convolutions with leaky rectifiers, and shortcuts over two of them each."""
    net = Network("darknet53", {"input": (1, 3, 256, 256)})

    def conv(x: str, channels: int, kernel: int, scope: str, stride: int = 1) -> str:
        made = net.conv(x, channels, kernel, f"{scope}/Conv2D", stride=stride)
        return net.op("LeakyRelu", [made], f"{scope}/LeakyRelu", net.shape[made], alpha=0.1)

    x = conv("input", 32, 3, "conv0")
    for stage, (channels, blocks) in enumerate(((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)), 1):
        x = conv(x, channels, 3, f"stage{stage}/down", stride=2)
        for block in range(blocks):
            scope = f"stage{stage}/{block}"
            inner = conv(conv(x, channels // 2, 1, f"{scope}/a"), channels, 3, f"{scope}/b")
            x = net.add(x, inner, f"{scope}/sum")
    return net.topology(net.classify(x, CLASSES, "logits"))
