"""Which weights a backward pass uses, against closed forms.

Design, section 2: "activations come from the forward pass; every Jacobian that involves a parameter
uses the backward weights. For y = w x with x = 5, upstream gradient 1, forward w = 2 and w = 3 by
the time of the backward pass: dx = 2 under stashing, 3 under T1, and 3 - tau delta under T2; dw = 5
in all three." The same is asked here of every kind of layer: the truths are written out by hand, or
put together by autograd from pieces in which the two sets of weights cannot meet (activations and
Jacobians are evaluated apart). A last test asks it of a whole run of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from core_cases import generator, make_job, network
from torch import Tensor, nn

from data.task import Microbatch, Task
from models.transformer import CrossAttention, EncoderAttention
from models.unit import Boundary, Unit
from reproduce.engine import run_pipeline
from reproduce.interception import Interception
from reproduce.reference import run_reference

TAU, DELTA = 1.5, 0.25
"""What T2 takes off: tau times delta, with a delta that differs from element to element"""


def delta(weight: Tensor) -> Tensor:
    return DELTA * torch.linspace(-1, 1, weight.numel(), dtype=weight.dtype).view_as(weight)


class Passes(NamedTuple):
    """A forward pass on w_fwd, then the weights move to w_live, then a backward pass."""

    outputs: Boundary
    input_gradients: list[Tensor]
    weight_gradients: list[Tensor]
    w_fwd: list[Tensor]
    w_bkwd: list[Tensor]


KINDS = ["stash", "live", "t2"]


def run(kind: str, module: nn.Module, inputs: Boundary, upstream: Tensor) -> Passes:
    """`upstream` is the gradient of the first output; the others are not used."""
    weights = list(module.parameters())
    w_fwd = [w.detach().clone() for w in weights]
    readers: dict[str, Callable[[int], Tensor]] = {
        "stash": lambda index: w_fwd[index],
        "live": lambda index: weights[index],
        "t2": lambda index: weights[index] - TAU * delta(weights[index]),
    }
    with Interception(weights).forward(readers[kind]):
        outputs = module(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    with torch.no_grad():
        for j, weight in enumerate(weights):
            weight += torch.randn(weight.shape, generator=generator(j), dtype=weight.dtype)
    w_bkwd = [readers[kind](j).detach().clone() for j in range(len(weights))]
    wanted = [t for t in inputs if t.requires_grad]
    found = torch.autograd.grad(outputs[0], [*wanted, *weights], upstream, allow_unused=True)
    return Passes(outputs, [*found[: len(wanted)]], [*found[len(wanted) :]], w_fwd, w_bkwd)


def data(*shape: int, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=generator(99, seed), dtype=torch.float64)
    return made.requires_grad_()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-12)


class Times(nn.Module):
    """y = w x"""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


@pytest.mark.parametrize(("kind", "dx"), [("stash", 2.0), ("live", 3.0), ("t2", 3.0 - 1.5 * 0.4)])
def test_the_example_of_the_design(kind: str, dx: float) -> None:
    module = Times()
    x = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    old = module.w.detach().clone()
    readers = {
        "stash": lambda _: old,
        "live": lambda _: module.w,
        "t2": lambda _: module.w - 1.5 * 0.4,
    }
    with Interception([module.w]).forward(readers[kind]):
        y = module(x)
    with torch.no_grad():
        module.w.fill_(3.0)
    found_dx, found_dw = torch.autograd.grad(y, [x, module.w], torch.ones(1, dtype=torch.float64))
    assert y.item() == 10.0
    assert found_dx.item() == pytest.approx(dx, abs=1e-15)
    assert found_dw.item() == 5.0


@pytest.mark.parametrize("kind", KINDS)
def test_linear(kind: str) -> None:
    x, upstream = data(4, 5), data(4, 3, seed=1).detach()
    found = run(kind, nn.Linear(5, 3, dtype=torch.float64), (x,), upstream)
    (w_fwd, b_fwd), (w_bkwd, _) = found.w_fwd, found.w_bkwd
    close(found.outputs[0], x @ w_fwd.T + b_fwd)
    close(found.input_gradients[0], upstream @ w_bkwd)
    close(found.weight_gradients[0], upstream.T @ x)
    close(found.weight_gradients[1], upstream.sum(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [2, 3])
def test_linear_on_more_axes_and_without_bias(kind: str, rank: int) -> None:
    shape = (2, 3, 4)[:rank]
    x, upstream = data(*shape, 5), data(*shape, 3, seed=1).detach()
    found = run(kind, nn.Linear(5, 3, bias=False, dtype=torch.float64), (x,), upstream)
    close(found.input_gradients[0], upstream @ found.w_bkwd[0])
    close(found.weight_gradients[0], upstream.flatten(0, -2).T @ x.flatten(0, -2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_convolution(kind: str, stride: int, dtype: torch.dtype) -> None:
    """dx is the transposed convolution with the backward weights; dw knows no weights at all."""
    x = data(2, 3, 7, 7).detach().to(dtype).requires_grad_()
    module = nn.Conv2d(3, 4, 3, stride=stride, padding=1).to(dtype)
    size = (7 + 2 - 3) // stride + 1
    upstream = data(2, 4, size, size, seed=1).detach().to(dtype)
    found = run(kind, module, (x,), upstream)
    dx = F.conv_transpose2d(upstream, found.w_bkwd[0], stride=stride, padding=1)
    patches = F.unfold(x, 3, padding=1, stride=stride)  # [B, 27, positions]
    dw = torch.einsum("bop,bkp->ok", upstream.flatten(2), patches).view_as(found.w_bkwd[0])
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {}
    check = partial(torch.testing.assert_close, **tolerance)
    check(found.input_gradients[0], dx.detach())
    check(found.weight_gradients[0], dw.detach())
    check(found.weight_gradients[1], upstream.sum((0, 2, 3)))


def normalized_gradient(g: Tensor, normal: Tensor, scale: Tensor, axes: tuple[int, ...]) -> Tensor:
    """d/dx of normal = (x - mean) / std over `axes`, pulled back from g; `scale` is 1 / std."""
    mean = partial(torch.mean, dim=axes, keepdim=True)
    return scale * (g - mean(g) - normal * mean(g * normal))


@pytest.mark.parametrize("kind", KINDS)
def test_batch_norm(kind: str) -> None:
    module = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
    x, upstream = data(4, 3, 5, 5), data(4, 3, 5, 5, seed=1).detach()
    axes = (0, 2, 3)
    centred = x - x.mean(axes, keepdim=True)
    scale = (centred.square().mean(axes, keepdim=True) + module.eps).rsqrt()
    normal = centred * scale
    found = run(kind, module, (x,), upstream)
    gamma = found.w_bkwd[0].view(1, 3, 1, 1)
    close(found.outputs[0], normal * found.w_fwd[0].view(1, 3, 1, 1))
    close(found.input_gradients[0], normalized_gradient(upstream * gamma, normal, scale, axes))
    close(found.weight_gradients[0], (upstream * normal).sum(axes))
    close(found.weight_gradients[1], upstream.sum(axes))
    assert module.num_batches_tracked == 1
    close(module.running_mean, 0.1 * x.mean(axes))


@pytest.mark.parametrize("kind", KINDS)
def test_layer_norm(kind: str) -> None:
    module = nn.LayerNorm(6, dtype=torch.float64)
    x, upstream = data(4, 2, 6), data(4, 2, 6, seed=1).detach()
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + module.eps).rsqrt()
    normal = centred * scale
    found = run(kind, module, (x,), upstream)
    gamma = found.w_bkwd[0]
    close(found.input_gradients[0], normalized_gradient(upstream * gamma, normal, scale, (-1,)))
    close(found.weight_gradients[0], (upstream * normal).sum((0, 1)))
    close(found.weight_gradients[1], upstream.sum((0, 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_embedding(kind: str) -> None:
    """No Jacobian involves the weights: row by row, the upstream gradients add up."""
    tokens = torch.tensor([[1, 2, 1], [0, 4, 4]])
    upstream = data(2, 3, 3).detach()
    found = run(kind, nn.Embedding(5, 3, dtype=torch.float64), (tokens,), upstream)
    dw = torch.zeros(5, 3, dtype=torch.float64)
    for row, token in enumerate(tokens.flatten().tolist()):
        dw[token] += upstream.view(-1, 3)[row]
    close(found.outputs[0], found.w_fwd[0][tokens])
    close(found.weight_gradients[0], dw)


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v, head by head; [B, L, dim] each."""
    size = q.shape[-1] // heads
    out = []
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
        scores = scores.masked_fill(~mask[:, 0], float("-inf"))
        out.append(scores.softmax(-1) @ v[..., part])
    return torch.cat(out, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_attention(kind: str) -> None:
    """The projection's output is an activation; only dx = d(qkv) W meets weights again."""
    module = EncoderAttention(6, 2, 0.0).double()
    x, upstream = data(2, 4, 6), data(2, 4, 6, seed=1).detach()
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    mask[0, ..., 3] = False
    found = run(kind, module, (x, mask, torch.zeros(1)), upstream)
    (w_fwd, b_fwd), (w_bkwd, _) = found.w_fwd, found.w_bkwd
    packed = (x @ w_fwd.T + b_fwd).detach().requires_grad_()
    out = attention_by_hand(*packed.chunk(3, -1), heads=2, mask=mask)
    (d_packed,) = torch.autograd.grad(out, packed, upstream)
    close(found.outputs[0], out)
    close(found.input_gradients[0], d_packed @ w_bkwd)
    close(found.weight_gradients[0], d_packed.flatten(0, 1).T @ x.flatten(0, 1))
    close(found.weight_gradients[1], d_packed.sum((0, 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_cross_attention_through_views_of_one_weight(kind: str) -> None:
    module = CrossAttention(6, 2, 0.0, last=True).double()
    y, memory = data(2, 3, 6), data(2, 4, 6, seed=2)
    upstream = data(2, 3, 6, seed=1).detach()
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    found = run(kind, module, (y, mask, memory), upstream)
    (w_fwd, b_fwd), (w_bkwd, _) = found.w_fwd, found.w_bkwd
    q = (y @ w_fwd[:6].T + b_fwd[:6]).detach().requires_grad_()
    kv = (memory @ w_fwd[6:].T + b_fwd[6:]).detach().requires_grad_()
    out = attention_by_hand(q, *kv.chunk(2, -1), heads=2, mask=mask)
    dq, dkv = torch.autograd.grad(out, [q, kv], upstream)
    close(found.outputs[0], out)
    close(found.input_gradients[0], dq @ w_bkwd[:6])
    close(found.input_gradients[1], dkv @ w_bkwd[6:])
    dw = torch.cat(
        [dq.flatten(0, 1).T @ y.flatten(0, 1), dkv.flatten(0, 1).T @ memory.flatten(0, 1)]
    )
    close(found.weight_gradients[0], dw)


class TwoLayers(nn.Module):
    """A weight whose Jacobian meets another's activations: x -> tanh(x A) B, A and B in one unit,
    B used through a slice, a transpose and a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 5, dtype=torch.float64, generator=generator(1)))
        self.b = nn.Parameter(torch.randn(3, 10, dtype=torch.float64, generator=generator(2)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.a) @ self.b.view(3, 2, 5)[:, 1].t()


@pytest.mark.parametrize("kind", KINDS)
def test_two_weights_and_a_view_of_a_view(kind: str) -> None:
    x, upstream = data(2, 4), data(2, 3, seed=1).detach()
    found = run(kind, TwoLayers(), (x,), upstream)
    (a_fwd, _), (a_bkwd, b_bkwd) = found.w_fwd, found.w_bkwd
    hidden = torch.tanh(x @ a_fwd)
    d_hidden = upstream @ b_bkwd[:, 5:] * (1 - hidden**2)
    close(found.input_gradients[0], d_hidden @ a_bkwd.T)
    close(found.weight_gradients[0], x.T @ d_hidden)
    db = torch.zeros(3, 10, dtype=torch.float64)
    db[:, 5:] = (upstream.T @ hidden).detach()
    close(found.weight_gradients[1], db)


def test_activations_are_told_and_weights_are_not() -> None:
    module, told = nn.Linear(5, 3), []
    x = torch.randn(4, 5, requires_grad=True)
    with Interception(list(module.parameters())).forward(lambda _: module.weight, told.append):
        module(x).tanh()
    shapes = sorted(tuple(t.shape) for t in told)
    assert shapes == [(4, 3), (4, 5)]  # tanh's result and the linear layer's input


# Through the engine.


class Start(Unit):
    """``(x,) -> (x + b * one,)``: what comes back for b is the dx of the unit behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, one: Tensor) -> Boundary:
        return (x + self.b * one,)


class Multiply(Unit):
    """``(x,) -> (w x,)``, w = 2 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, x: Tensor) -> Boundary:
        return (self.w * x,)


class FiveTwice(Task):
    """x = 5 in both micro-batches; the loss is -y in the first and y in the second."""

    name, metric = "five", "accuracy"

    def microbatch(self, m: int) -> Microbatch:
        return Microbatch((torch.tensor([5.0]), torch.ones(1)), torch.tensor([2.0 * m - 1.0]))

    def loss(self, outputs: Boundary, target: Tensor) -> Tensor:
        return (outputs[0] * target).sum()

    def evaluate(self, forward: Callable[[Boundary], Boundary]) -> float:
        return 0.0

    def resolution(self) -> float:
        return 1.0


@pytest.mark.parametrize("engine", ["reference", "1 worker", "2 workers"])
@pytest.mark.parametrize(
    ("method", "dx"), [("pipedream", 2.0), ("async", 3.0), ("t1", 3.0), ("t1+t2", 3.0 - 0.7)]
)
def test_the_example_through_the_engine(
    method: str, dx: float, engine: str, tmp_path: Path
) -> None:
    """P = 2, N = 1: micro-batch 1 goes forward on w = 2, and micro-batch 0 takes w to 3 before it
    comes back, since dw = -5 and the learning rate is 1/5. tau = 1 and D = 0.3, so delta = 0.7."""
    lr = 0.2
    job = make_job(
        network(Start, Multiply),
        FiveTwice,
        method,
        stages=2,
        microbatches=1,
        steps=2,
        annealing_steps=0,
        decay=0.3,
        optimizer=partial(torch.optim.SGD, lr=lr),
        dtype=torch.float64,
    )
    outcome = run_reference(job) if engine == "reference" else run_pipeline(job, int(engine[0]))
    b, w = (t.item() for t in outcome.weights)
    assert outcome.losses == [-10.0, 10.0]  # both on w = 2 and x = 5
    assert w == pytest.approx(3.0 - lr * 5.0)  # dw = 5, whatever the method
    after_first = -lr * -2.0  # micro-batch 0 came back on w = 2, from -y
    assert (after_first - b) / lr == pytest.approx(dx)
