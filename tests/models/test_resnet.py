"""ResNets against torchvision's, to the last bit."""

import pytest
import torch
import torch.nn.functional as F
import torchvision.models
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from models.resnet import resnet, resnet_from_layers


class NarrowResNet(ResNet):
    """torchvision's ResNet of any base width, with the given stem."""

    def __init__(self, layers, classes, width, stem):
        nn.Module.__init__(self)
        self._norm_layer, self.groups, self.base_width = nn.BatchNorm2d, 1, 64
        self.inplanes, self.dilation = width, 1
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        if stem == "cifar":
            self.conv1, self.maxpool = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.Identity()
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        for group, blocks in enumerate(layers):  # always four
            stride = 1 if group == 0 else 2
            layer = self._make_layer(Bottleneck, width << group, blocks, stride)
            setattr(self, f"layer{group + 1}", layer)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * (width << 3), classes)
        for conv in (m for m in self.modules() if isinstance(m, nn.Conv2d)):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")


def assert_equal_to_oracle(network, oracle, images, train=True):
    """Logits, every gradient and every running statistic of one step, compared exactly."""
    block = network.block(range(len(network)), seed=3).double().train(train)
    oracle = oracle.double().train(train)
    ours, theirs = list(block.parameters()), list(oracle.parameters())
    with torch.no_grad():
        for target, source in zip(theirs, ours, strict=True):
            target.copy_(source)

    images = images.double()
    labels = torch.arange(len(images))
    expected = oracle(images)
    (logits,) = block(images, seed=0, microbatch=0)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(logits, expected, **exact)
    torch.testing.assert_close(
        torch.autograd.grad(F.cross_entropy(logits, labels), ours),
        torch.autograd.grad(F.cross_entropy(expected, labels), theirs),
        **exact,
    )
    torch.testing.assert_close(list(block.buffers()), list(oracle.buffers()), **exact)


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("depth", "units"), [(50, 107), (101, 209), (152, 311)])
def test_one_weighted_layer_is_one_unit(depth, units):
    network = resnet(depth, classes=10, width=2, stem="cifar")
    assert len(network) == units
    weighted = (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
    for unit in network.block(range(units), seed=0).units:
        assert sum(isinstance(m, weighted) for m in unit.modules()) == 1


@pytest.mark.parametrize("depth", [50, 152])
def test_equal_to_torchvision(depth):
    """The published networks, whole: 25.6 and 60.2 million parameters."""
    oracle = getattr(torchvision.models, f"resnet{depth}")()
    assert_equal_to_oracle(resnet(depth, classes=1000), oracle, images(3, 3, 32, 32))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("train", [True, False])
def test_narrow_resnets_equal_torchvision(stem, train):
    layers = (2, 1, 2, 1)
    oracle = NarrowResNet(layers, 10, 8, stem)
    network = resnet_from_layers(layers, 10, width=8, stem=stem)
    assert_equal_to_oracle(network, oracle, images(4, 3, 33, 33), train)


def test_initialisation_is_torchvisions():
    """Equal scale: the same spread of every weight, whatever the random numbers."""
    layers = (1, 1, 1, 1)
    network = resnet_from_layers(layers, 10, width=32)
    ours = list(network.block(range(len(network)), seed=0).parameters())
    theirs = list(NarrowResNet(layers, 10, 32, "imagenet").parameters())
    for weight, other in zip(ours, theirs, strict=True):
        if weight.numel() > 1000:
            torch.testing.assert_close(weight.std(), other.std(), rtol=0.1, atol=0)
        elif weight.numel() > 10:  # of a batch norm: all 1 or all 0
            assert torch.equal(weight, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 18}, "depth is 18; choose one of 50, 101, 152"),
        ({"depth": 50, "stem": "tiny"}, "stem is 'tiny'"),
        ({"depth": 50, "width": 0}, "width 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        resnet(classes=10, **arguments)
