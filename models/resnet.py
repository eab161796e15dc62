"""Bottleneck ResNets as weight units: ResNet-50 has 107 units, ResNet-101 209, ResNet-152 311.

He et al., "Deep Residual Learning" (arXiv 1512.03385), with the stride in the 3x3 convolution
("v1.5") and the initialisation of `torchvision.models.resnet`. Units come in the order of
torchvision's parameters, so weights can be copied in either direction by zipping.

Between blocks a boundary is ``(x,)``; inside a block it is ``(activation, skip)``. All activations
are [batch, channels, height, width].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from models.unit import Blueprint, Boundary, Network, Unit

Stem = Literal["cifar", "imagenet"]

LAYERS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks in each of the four groups, by depth."""

EXPANSION = 4
"""Output channels of a bottleneck block over the channels of its 3x3 convolution."""


def identity(x: Tensor) -> Tensor:
    return x


def relu_max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), kernel_size=3, stride=2, padding=1)


def relu_average(x: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, C]"""
    return F.adaptive_avg_pool2d(F.relu(x), 1).flatten(1)


class ConvUnit(Unit):
    """A convolution without bias, padded so that stride 1 keeps the image size."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")


class MainConv(ConvUnit):
    """``(x, *skip) -> (conv(x), *skip)``"""

    def forward(self, x: Tensor, *skip: Tensor) -> Boundary:
        return self.conv(x), *skip


class OpeningConv(ConvUnit):
    """First of a block: ``(x,) -> (conv(x), x)``"""

    def forward(self, x: Tensor) -> Boundary:
        return self.conv(x), x


class SkipConv(ConvUnit):
    """The downsampling projection: ``(x, skip) -> (x, conv(skip))``"""

    def forward(self, x: Tensor, skip: Tensor) -> Boundary:
        return x, self.conv(skip)


class NormUnit(Unit):
    """A batch norm, and the parameter-free operations `after` it."""

    def __init__(self, channels: int, after: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.after = after


class MainNorm(NormUnit):
    """``(x, *skip) -> (after(norm(x)), *skip)``"""

    def forward(self, x: Tensor, *skip: Tensor) -> Boundary:
        return self.after(self.norm(x)), *skip


class ClosingNorm(NormUnit):
    """Last of a block without a projection: ``(x, skip) -> (after(norm(x) + skip),)``"""

    def forward(self, x: Tensor, skip: Tensor) -> Boundary:
        return (self.after(self.norm(x) + skip),)


class ClosingSkipNorm(NormUnit):
    """Last of a block with a projection: ``(x, skip) -> (after(x + norm(skip)),)``"""

    def forward(self, x: Tensor, skip: Tensor) -> Boundary:
        return (self.after(x + self.norm(skip)),)


class Classifier(Unit):
    """``([B, features],) -> ([B, classes],)``"""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Boundary:
        return (self.linear(x),)


def bottleneck(
    inputs: int, width: int, stride: int, projection: bool, after: Callable[[Tensor], Tensor]
) -> list[Blueprint]:
    """Units of one block: 1x1, 3x3 and 1x1 convolutions, plus a 1x1 on the skip if `projection`."""
    outputs = EXPANSION * width
    units: list[Blueprint] = [
        partial(OpeningConv, inputs, width, 1),
        partial(MainNorm, width),
        partial(MainConv, width, width, 3, stride),
        partial(MainNorm, width),
        partial(MainConv, width, outputs, 1),
    ]
    if not projection:
        return [*units, partial(ClosingNorm, outputs, after)]
    return [
        *units,
        partial(MainNorm, outputs, identity),
        partial(SkipConv, inputs, outputs, 1, stride),
        partial(ClosingSkipNorm, outputs, after),
    ]


def resnet_from_layers(
    layers: Sequence[int],
    classes: int,
    width: int = 64,
    stem: Stem = "imagenet",
    channels: int = 3,
    name: str = "resnet",
) -> Network:
    """A bottleneck ResNet with ``layers[g]`` blocks in group g.

    ``([B, channels, H, W] float,) -> ([B, classes] logits,)``

    `width` is the number of channels of the stem and of the first group's 3x3 convolutions; each
    later group doubles it and halves the image. The `imagenet` stem is a 7x7 convolution of
    stride 2 with a max pool, the `cifar` stem a 3x3 of stride 1 for images of about 8 to 64 pixels.

    Raises ValueError for an unknown stem, and for an empty network, group, image or output.
    """
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f"stem is {stem!r}; choose 'cifar' or 'imagenet'")
    if not layers or min(*layers, classes, width, channels) < 1:
        raise ValueError(
            f"layers {tuple(layers)}, classes {classes}, width {width} and channels {channels} "
            "must all be at least 1"
        )
    kernel, stride, after = (7, 2, relu_max_pool) if stem == "imagenet" else (3, 1, F.relu)
    units: list[Blueprint] = [
        partial(MainConv, channels, width, kernel, stride),
        partial(MainNorm, width, after),
    ]
    inputs = width
    for group, blocks in enumerate(layers):
        for block in range(blocks):
            first = block == 0
            last = group == len(layers) - 1 and block == blocks - 1
            units += bottleneck(
                inputs,
                width << group,
                stride=2 if first and group > 0 else 1,
                projection=first,
                after=relu_average if last else F.relu,
            )
            inputs = EXPANSION * (width << group)
    units.append(partial(Classifier, inputs, classes))
    return Network(name, tuple(units))


def resnet(
    depth: int, classes: int, width: int = 64, stem: Stem = "imagenet", channels: int = 3
) -> Network:
    """ResNet-50, -101 or -152; `width` 64 is the published size. See `resnet_from_layers`.

    Raises ValueError for another depth.
    """
    if depth not in LAYERS:
        raise ValueError(f"depth is {depth}; choose one of {', '.join(map(str, LAYERS))}")
    return resnet_from_layers(LAYERS[depth], classes, width, stem, channels, f"resnet{depth}")
