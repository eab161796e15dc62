"""What every network owes the engine, whatever it computes."""

import pickle
import random
from itertools import pairwise

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from models.resnet import resnet, resnet_from_layers
from models.shapes import TensorSpec, boundary_shapes
from models.transformer import transformer
from models.unit import run_units


def resnet_case():
    network = resnet_from_layers((2, 1, 1), classes=5, width=4, stem="cifar", channels=1)
    return network, (torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)),)


def transformer_case():
    network = transformer(19, 8, 2, 12, 2, 2, dropout=0.2, max_length=9, pad=0)
    generator = torch.Generator().manual_seed(2)
    source, target = (torch.randint(1, 19, (3, n), generator=generator) for n in (6, 8))
    source[0, 3:] = 0
    return network, (source, target)


@pytest.fixture(params=[resnet_case, transformer_case], ids=["resnet", "transformer"])
def case(request):
    return request.param()


def build(network, seed=0):
    return list(network.block(range(len(network)), seed).units)


def forward(units, first, boundary):
    return run_units(list(enumerate(units, first)), boundary, seed=1, microbatch=2)


def parameters(units):
    return [p for unit in units for p in unit.parameters()]


def chopped_gradients(units, inputs, cuts):
    """Output and parameter gradients, stage by stage: nothing but tensors crosses a cut."""
    runs, boundary = [], inputs
    for a, b in pairwise((0, *cuts, len(units))):
        received = tuple(t.detach().requires_grad_(t.requires_grad) for t in boundary)
        boundary = forward(units[a:b], a, received)
        runs.append((units[a:b], received, boundary))
    whole, upstream = [], (torch.ones_like(boundary[0]),)
    for stage, received, sent in reversed(runs):
        weights = parameters(stage)
        outputs, sources = ([t for t in side if t.requires_grad] for side in (sent, received))
        found = torch.autograd.grad(outputs, weights + sources, upstream)
        whole = [*found[: len(weights)], *whole]
        upstream = found[len(weights) :]
    return boundary[0], whole


def test_chopping_anywhere_leaves_every_bit_of_the_gradients(case):
    network, inputs = case
    units = build(network)
    output, expected = chopped_gradients(units, inputs, ())
    every_cut = tuple(range(1, len(units)))
    picker = random.Random(0)
    some = [sorted(picker.sample(every_cut, picker.randint(1, 9))) for _ in range(15)]
    for cuts in [every_cut, *some]:
        again, found = chopped_gradients(units, inputs, cuts)
        assert torch.equal(again, output)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), cuts


def test_shapes_are_those_of_a_real_forward(case):
    network, inputs = case
    state = torch.get_rng_state()
    with torch.no_grad():  # as an engine may ask from anywhere
        specs = boundary_shapes(network, inputs, torch.float64)
    assert torch.equal(torch.get_rng_state(), state)
    boundary = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    for index, unit in enumerate(build(network)):
        boundary = forward([unit.double()], index, boundary)
        real = [TensorSpec(tuple(t.shape), t.dtype, t.requires_grad) for t in boundary]
        assert specs[index] == real
        assert [s.nbytes for s in real] == [t.numel() * t.element_size() for t in boundary]


def test_units_leave_what_they_are_given_alone(case):
    network, boundary = case
    for index, unit in enumerate(build(network)):
        before = [t.detach().clone() for t in boundary]
        outgoing = forward([unit], index, boundary)
        assert isinstance(outgoing, tuple)
        assert all(torch.equal(a, b) for a, b in zip(before, boundary, strict=True))
        boundary = outgoing


def through_weights(unit, received, sent):
    """(outgoing, incoming) tensor of each path that leads through the unit's weight alone."""
    match type(unit).__name__:
        case "SkipConv":
            return [(sent[1], received[1])]
        case "ClosingSkipNorm":
            return [(sent[0], received[1])]
        case "CrossAttention":
            return [(sent[0], received[0]), (sent[0], received[2])]
        case "SourceEmbedding" | "TargetEmbedding":
            return []
        case _:
            return [(sent[0], received[0])]


def test_no_backward_uses_a_copy_of_a_weight_of_its_own(case):
    """With every saved alias of a weight read as 0, no gradient passes a weighted layer.

    Were a unit to save something derived from its weight, a gradient would still come through.
    """
    network, boundary = case
    for index, unit in enumerate(build(network)):
        received = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in boundary)
        weights = {p.untyped_storage().data_ptr() for p in unit.parameters()}

        def read(saved, weights=weights):
            is_weight = saved.untyped_storage().data_ptr() in weights
            return torch.zeros_like(saved) if is_weight else saved

        for pack, blocked in ((read, True), (torch.Tensor.detach, False)):
            with saved_tensors_hooks(pack, lambda packed: packed):
                boundary = forward([unit], index, received)
            for output, source in through_weights(unit, received, boundary):
                upstream = torch.linspace(0, 1, output.numel()).view_as(output)
                (grad,) = torch.autograd.grad(output, source, upstream, retain_graph=True)
                assert (grad.count_nonzero() == 0) == blocked, type(unit).__name__


def test_initial_weights_depend_on_seed_and_unit_only(case):
    network, _ = case
    state = torch.get_rng_state()
    units = build(network, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    for index in reversed(range(len(network))):
        again = network.build(index, seed=4).state_dict()
        assert all(torch.equal(again[k], v) for k, v in units[index].state_dict().items())
    random_weights = [w for w in parameters(units) if w.unique().numel() > 1]
    others = [w for w in parameters(build(network, seed=5)) if w.unique().numel() > 1]
    assert not any(torch.equal(a, b) for a, b in zip(random_weights, others, strict=True))
    starts = {tuple(w.flatten()[:4].tolist()) for w in random_weights}
    assert len(starts) == len(random_weights)


def test_networks_are_picklable(case):
    network, inputs = case
    again = pickle.loads(pickle.dumps(network))
    assert again.name == network.name
    outputs = [forward(build(n), 0, inputs)[0] for n in (network, again)]
    assert torch.equal(*outputs)


def test_image_channels_and_size_reach_the_units():
    specs = boundary_shapes(resnet(50, 10, 8, "cifar", channels=1), (torch.zeros(2, 1, 8, 8),))
    assert specs[0] == [TensorSpec((2, 8, 8, 8), torch.float32, True)]
    assert specs[-1] == [TensorSpec((2, 10), torch.float32, True)]
